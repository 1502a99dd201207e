//! Cards over AF_XDP, over kernel UDP, and one of each, between two hosts of a test bed.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use testbed::{Family, Host, Pair};
use verbs_shim::api::*;
use verbs_shim::card::{Opcode, Status};
use verbs_shim::{DriverChoice, NicConfig, OpenError};

const DRIVERS: [[DriverChoice; 2]; 4] = {
    use DriverChoice::{Udp, Xdp};
    [[Xdp, Xdp], [Xdp, Udp], [Udp, Xdp], [Udp, Udp]]
};
const ROUNDS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(120);

/// A device with everything to talk. Its sockets open in whatever thread drives it, so it belongs on the host's.
struct Side {
    qp: QueuePair<Srd>,
    cq: CompletionQueue,
    pd: Pd,
    device: Device,
}

fn config(host: &Host, family: Family, driver: DriverChoice) -> NicConfig {
    NicConfig { driver, ..NicConfig::at(SocketAddr::new(host.ip(family), 0)) }
}

fn side(config: NicConfig) -> Side {
    let device = Device::open(config).expect("a card on a host of the bed");
    let (pd, cq) = (device.pd().unwrap(), device.cq(64).unwrap());
    let qp = pd.srd(&cq).build().unwrap();
    Side { qp, cq, pd, device }
}

fn next(cq: &CompletionQueue) -> Completion {
    cq.wait(Some(PATIENCE)).unwrap().expect("a completion in time").ok().expect("a success")
}

/// The next completion of this kind; those of other kinds wait in `early`.
fn next_of(kind: Opcode, cq: &CompletionQueue, early: &mut Vec<Completion>) -> Completion {
    loop {
        match early.iter().position(|done| done.kind == kind) {
            Some(at) => return early.remove(at),
            None => early.push(next(cq)),
        }
    }
}

fn filled(pd: &Pd, len: usize, with: u8) -> Buf {
    let mut buf = pd.buf(len).unwrap();
    buf.fill(with);
    buf
}

/// Sizes from nothing to the longest message.
fn size(round: u32) -> usize {
    [0, 1, 63, 1500, 4096, 8928][round as usize % 6]
}

#[test]
fn cards_of_all_kinds_talk() {
    for (mtu, family) in [(1500, Family::V4), (9000, Family::V6)] {
        for drivers in DRIVERS {
            let Some(bed) = Pair::builder().mtu(mtu).for_test() else { return };
            talk(&bed, family, drivers);
        }
    }
}

fn talk(bed: &Pair, family: Family, drivers: [DriverChoice; 2]) {
    let configs = [0, 1].map(|k| config(bed.host(k), family, drivers[k]));
    let [asks, serves] = configs;
    let (tell_server, server_at) = mpsc::channel();
    let (tell_client, client_at) = mpsc::channel();
    let server = bed.host(1).spawn(move || {
        let here = side(serves);
        let window = here.pd.window(1 << 20, true, true).unwrap();
        window.write(0, &vec![9; 1 << 20]);
        here.qp.recv(here.pd.buf(8928).unwrap()).unwrap();
        tell_server.send((here.qp.address(), window.remote())).unwrap();
        let client = here.pd.target(client_at.recv().unwrap()).unwrap();
        let mut early = Vec::new();
        for round in 0..ROUNDS {
            let got = next_of(Opcode::Recv, &here.cq, &mut early);
            assert_eq!(got.imm, Some(round), "{drivers:?}");
            let mut buf = got.buf.unwrap();
            assert!(buf.len() == size(round) && buf.iter().all(|b| *b == round as u8), "{drivers:?}: round {round}");
            here.qp.recv(here.pd.buf(8928).unwrap()).unwrap();
            buf.fill(!(round as u8));
            here.qp.send_imm(&client, buf, round).unwrap();
            next_of(Opcode::Send, &here.cq, &mut early);
        }
        // It may go when the client has read and written its memory.
        assert_eq!(client_at.recv(), Err(mpsc::RecvError));
        let mut there = vec![0; 1 << 20];
        window.read(0, &mut there);
        assert!(there.iter().all(|b| *b == 3), "{drivers:?}: what was written");
        here.device.counters().port.recv_wrs
    });
    let client = bed.host(0).spawn(move || {
        let here = side(asks);
        here.qp.recv(here.pd.buf(8928).unwrap()).unwrap();
        tell_client.send(here.qp.address()).unwrap();
        let (address, window) = server_at.recv().unwrap();
        let server = here.pd.target(address).unwrap();
        let mut early = Vec::new();
        for round in 0..ROUNDS {
            here.qp.send_imm(&server, filled(&here.pd, size(round), round as u8), round).unwrap();
            next_of(Opcode::Send, &here.cq, &mut early);
            let answer = next_of(Opcode::Recv, &here.cq, &mut early).buf.unwrap();
            assert!(answer.len() == size(round) && answer.iter().all(|b| *b == !(round as u8)), "{drivers:?}");
            here.qp.recv(here.pd.buf(8928).unwrap()).unwrap();
        }
        here.qp.read(&server, here.pd.buf(1 << 20).unwrap(), window).unwrap();
        let read = next(&here.cq).buf.unwrap();
        assert!(read.len() == 1 << 20 && read.iter().all(|b| *b == 9), "{drivers:?}: what was read");
        here.qp.write(&server, filled(&here.pd, 1 << 20, 3), window, None).unwrap();
        next(&here.cq);
        drop(tell_client);
    });
    client.expect("a thread").join().expect("the client succeeds");
    assert!(server.expect("a thread").join().expect("the server succeeds") > 0);
}

#[test]
fn each_processing_unit_has_a_queue_of_its_own() {
    let Some(bed) = Pair::builder().queues(2).for_test() else { return };
    let config = |k: usize| NicConfig { units: 2, ..config(bed.host(k), Family::V4, DriverChoice::Xdp) };
    let ([asks, serves], (tell, at)) = ([config(0), config(1)], mpsc::channel());
    let (done, is_done) = mpsc::channel::<()>();
    let server = bed.host(1).spawn(move || {
        let here = side(serves);
        let second = here.pd.srd(&here.cq).build().unwrap();
        for qp in [&here.qp, &second] {
            for _ in 0..8 {
                qp.recv(here.pd.buf(8928).unwrap()).unwrap();
            }
        }
        tell.send([here.qp.address(), second.address()]).unwrap();
        let received = (0..16).filter(|_| next(&here.cq).buf.is_some_and(|b| b.len() == 5000)).count();
        assert_eq!(received, 16);
        assert_eq!(is_done.recv(), Err(mpsc::RecvError));
    });
    let client = bed.host(0).spawn(move || {
        let here = side(asks);
        // Both queues are taken, so nobody else gets one.
        let third = NicConfig { driver: DriverChoice::Xdp, ..NicConfig::at(here.device.gid().addr().unwrap()) };
        assert!(matches!(Device::open(third), Err(OpenError::Xdp(_))));
        let second = here.pd.srd(&here.cq).build().unwrap();
        let to = at.recv().unwrap().map(|address| here.pd.target(address).unwrap());
        for k in 0..16 {
            let from = [&here.qp, &second][k % 2];
            from.send(&to[k / 2 % 2], filled(&here.pd, 5000, 1)).unwrap();
        }
        (0..16).for_each(|_| drop(next(&here.cq)));
        drop(done);
    });
    client.expect("a thread").join().expect("the client succeeds");
    server.expect("a thread").join().expect("the server succeeds");
}

#[test]
fn a_peer_that_is_not_there_is_told_of_in_time() {
    let Some(bed) = Pair::builder().for_test() else { return };
    let config = config(bed.host(0), Family::V4, DriverChoice::Xdp);
    let gone = SocketAddr::new(bed.host(1).ip(Family::V4), 9);
    let alone = bed.host(0).spawn(move || {
        let here = side(config);
        let gid = verbs_shim::Gid::new(gone).unwrap();
        let nobody = here.pd.target(QpAddress { gid, ..here.qp.address() }).unwrap();
        here.qp.send(&nobody, filled(&here.pd, 10, 1)).unwrap();
        here.cq.wait(Some(PATIENCE)).unwrap().expect("a completion in time").ok().expect_err("nobody is there").0.status
    });
    assert_eq!(alone.expect("a thread").join().expect("no panic"), Status::UnreachRemote);
}

#[test]
fn a_second_card_at_a_taken_queue_says_so_and_auto_takes_udp() {
    let Some(bed) = Pair::builder().for_test() else { return };
    let make = |driver| config(bed.host(0), Family::V4, driver);
    let [first, second, third] = [DriverChoice::Xdp, DriverChoice::Xdp, DriverChoice::Auto].map(make);
    let opens = bed.host(0).spawn(move || {
        let first = side(first);
        let refused = Device::open(second.clone()).expect_err("there is one queue only");
        assert!(matches!(refused, OpenError::Xdp(_)) && refused.to_string().contains("--xdp-queues"), "{refused}");
        side(third);
        drop(first);
        // The second processing unit finds none, either.
        let refused = Device::open(NicConfig { units: 2, ..second }).expect_err("there is one queue only");
        assert!(refused.to_string().contains("--xdp-queues"), "{refused}");
    });
    opens.expect("a thread").join().expect("no panic");
}
