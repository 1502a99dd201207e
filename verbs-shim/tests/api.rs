//! The safe interface, over loopback.

use std::future::Future as _;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use verbs_shim::NicConfig;
use verbs_shim::api::*;
use verbs_shim::card::{CardError, Gid, Opcode, Status};

/// Each test with cards of these numbers of processing units.
macro_rules! with_units {
    ($($name:ident $units:expr, $tests:tt)*) => { $(with_units!(@ $name $units, $tests);)* };
    (@ $name:ident $units:expr, { $($test:ident)* }) => {
        mod $name {
            $(#[test] fn $test() { super::$test($units) })*
        }
    };
}

macro_rules! tests {
    ($tests:tt) => {
        with_units! {
            one_unit [1, 1], $tests
            two_units [2, 2], $tests
            four_units [4, 4], $tests
            two_and_one [2, 1], $tests
            one_and_four [1, 4], $tests
        }
    };
}

tests! {{
    buffers_go_and_come_back
    windows_are_read_and_written_by_peers
    windows_have_an_end
    memory_that_is_not_to_be_had_is_refused
    refused_requests_return_their_buffers
    a_receiver_that_is_not_ready_and_one_that_is_too_short
    completion_queues_have_room_for_all_that_can_complete
    completion_queues_of_other_devices_are_refused
    everything_may_go_in_any_order
    datagrams_show_their_payload_only
    unsolicited_writes_take_no_receive
    a_file_descriptor_tells_of_completions
    whoever_waits_learns_of_what_others_leave
    time_to_wait_may_be_for_ever
    tasks_await_completions_of_one_queue
    futures_that_are_dropped_keep_no_task
    a_receive_that_is_posted_just_after_the_send_is_not_too_late
    queue_pairs_are_made_and_dropped_by_many_threads_at_once
    addresses_are_told_as_text
}}

/// A device with everything to talk.
struct Side {
    qp: QueuePair<Srd>,
    cq: CompletionQueue,
    pd: Pd,
    device: Device,
}

/// A card of so many processing units.
fn device(units: u16) -> Device {
    let addr = (Ipv4Addr::LOCALHOST, 0).into();
    Device::open(NicConfig { units, ..NicConfig::at(addr) }).expect("a card on loopback")
}

fn side(units: u16) -> Side {
    let device = device(units);
    let (pd, cq) = (device.pd().unwrap(), device.cq(64).unwrap());
    let qp = pd.srd(&cq).build().unwrap();
    Side { qp, cq, pd, device }
}

fn pair(units: [u16; 2]) -> (Side, Side, Target, Target) {
    let [a, b] = units.map(side);
    let (to_b, to_a) = (a.pd.target(b.qp.address()).unwrap(), b.pd.target(a.qp.address()).unwrap());
    (a, b, to_b, to_a)
}

fn next(cq: &CompletionQueue) -> Completion {
    cq.wait(Some(Duration::from_secs(120))).unwrap().expect("a completion in time")
}

fn filled(pd: &Pd, len: usize, with: u8) -> Buf {
    let mut buf = pd.buf(len).unwrap();
    buf.fill(with);
    buf
}

fn buffers_go_and_come_back(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    let posted = b.qp.recv(b.pd.buf(1000).unwrap()).unwrap();
    let sent = a.qp.send_imm(&to_b, filled(&a.pd, 700, 3), 9).unwrap();
    let done = next(&a.cq).ok().unwrap();
    assert_eq!((done.id, done.kind, done.buf.as_deref()), (Some(sent), Opcode::Send, Some(&[3; 700][..])));
    let got = next(&b.cq).ok().unwrap();
    assert_eq!((got.id, got.kind, got.imm), (Some(posted), Opcode::Recv, Some(9)));
    let from = got.source.unwrap();
    let handle = b.pd.address_handle(a.device.gid()).unwrap();
    assert_eq!((from.gid, from.qpn, from.ah), (a.device.gid(), a.qp.address().qpn, Some(handle.number())));
    let mut buf = got.buf.unwrap();
    assert_eq!((&buf[..], buf.capacity()), (&[3; 700][..], 1000));
    // And again, with all of it.
    buf.set_len(1000);
    b.qp.recv(buf).unwrap();
    a.qp.send_inline(&to_b, b"inline", None).unwrap();
    assert!(next(&a.cq).ok().unwrap().buf.is_none());
    assert_eq!(next(&b.cq).ok().unwrap().buf.as_deref(), Some(&b"inline"[..]));
}

fn windows_are_read_and_written_by_peers(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    let window = b.pd.window(100_000, true, true).unwrap();
    window.write(10, &[5; 90_000]);
    a.qp.read(&to_b, a.pd.buf(99_000).unwrap(), window.remote()).unwrap();
    let read = next(&a.cq).ok().unwrap().buf.unwrap();
    assert!(read[..10].iter().all(|b| *b == 0) && read[10..90_010].iter().all(|b| *b == 5));
    b.qp.recv(b.pd.buf(0).unwrap()).unwrap();
    a.qp.write(&to_b, read, window.remote().slice(500..99_500), Some(4)).unwrap();
    next(&a.cq).ok().unwrap();
    let told = next(&b.cq).ok().unwrap();
    assert_eq!((told.kind, told.imm, told.written), (Opcode::RecvRdmaWithImm, Some(4), 99_000));
    let mut there = vec![1; 1000];
    window.read(0, &mut there);
    assert!(there[..10].iter().chain(&there[500..510]).all(|b| *b == 0));
    assert!(there[10..500].iter().chain(&there[510..]).all(|b| *b == 5));
    let read_only = b.pd.window(100, true, false).unwrap();
    a.qp.write(&to_b, filled(&a.pd, 10, 1), read_only.remote(), None).unwrap();
    let error = next(&a.cq).ok().unwrap_err();
    assert_eq!(error.0.status, Status::BadAddress);
    assert!(error.to_string().contains("REMOTE_ERROR_BAD_ADDRESS (7)"), "{error}");
    // A window that is gone cannot be reached.
    let gone = window.remote();
    drop(window);
    a.qp.write(&to_b, error.0.buf.unwrap(), gone, None).unwrap();
    assert_eq!(next(&a.cq).status, Status::BadAddress);
}

fn windows_have_an_end(units: [u16; 2]) {
    let device = device(units[0]);
    let window = device.pd().unwrap().window(100, true, true).unwrap();
    for (offset, len) in [(0, 101), (1, 100), (50, 51), (100, 1), (101, 1), (usize::MAX, 2), (usize::MAX - 100, 101)] {
        let panics = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        assert!(panics(&|| window.read(offset, &mut vec![0; len])), "read {len} at {offset}");
        assert!(panics(&|| window.write(offset, &vec![1; len])), "write {len} at {offset}");
    }
    // All of it is as it was, and can be used.
    let mut all = [1; 100];
    window.read(0, &mut all);
    assert_eq!(all, [0; 100]);
    window.write(99, &[7]);
    window.write(100, &[]);
    window.read(99, &mut all[..1]);
    assert_eq!(all[0], 7);
}

fn memory_that_is_not_to_be_had_is_refused(units: [u16; 2]) {
    let pd = device(units[0]).pd().unwrap();
    for len in [usize::MAX, isize::MAX as usize, 1 << 62] {
        assert!(matches!(pd.buf(len), Err(CardError::NoMemory(_))), "{len}");
        assert!(matches!(pd.window(len, true, true), Err(CardError::NoMemory(_))), "{len}");
    }
    assert!(pd.buf(0).is_ok());
}

fn refused_requests_return_their_buffers(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    let long = filled(&a.pd, a.device.max_message() + 1, 0);
    a.qp.send(&to_b, long).unwrap();
    assert_eq!(next(&a.cq).ok().unwrap_err().0.status, Status::LocalBadLength);
    let refused = a.qp.send_inline(&to_b, &[0; 81], None).unwrap_err();
    assert!(matches!(refused.error, CardError::Invalid(_)));
    let mut bufs = a.pd.bufs(17, 10).unwrap();
    let last = bufs.pop().unwrap();
    for buf in bufs {
        a.qp.send(&to_b, buf).unwrap();
    }
    let refused = a.qp.send(&to_b, last).unwrap_err();
    assert!(matches!(refused.error, CardError::NoMemory(_)));
    assert_eq!(refused.buf.map(|b| b.capacity()), Some(10));
    let window = b.pd.window(10, false, true).unwrap().remote();
    let refused = a.qp.write(&to_b, filled(&a.pd, 11, 0), window, None).unwrap_err();
    assert!(refused.to_string().contains("longer than the remote range"));
    // A handle of someone else means nothing here.
    let (other, with_room) = (a.device.pd().unwrap(), a.pd.srd(&a.cq).depth(1, 1).build().unwrap());
    let foreign = other.target(b.qp.address()).unwrap();
    let refused = with_room.send(&foreign, filled(&a.pd, 10, 0)).unwrap_err();
    assert!(matches!(refused.error, CardError::Invalid(_)));
    with_room.send(&to_b, refused.buf.expect("it comes back")).unwrap();
    // Nor does memory of someone else.
    for pd in [&other, &b.pd] {
        let idle = a.pd.srd(&a.cq).depth(1, 1).build().unwrap();
        let mine = b.pd.window(10, true, true).unwrap().remote();
        let foreign = || pd.buf(10).unwrap();
        let all = [idle.send(&to_b, foreign()), idle.read(&to_b, foreign(), mine), idle.recv(foreign())];
        for refused in all.map(|posted| posted.unwrap_err()) {
            assert!(refused.to_string().contains("the buffer is of another protection domain"), "{refused}");
            assert_eq!(refused.buf.map(|b| b.capacity()), Some(10));
        }
    }
}

fn a_receiver_that_is_not_ready_and_one_that_is_too_short(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    let impatient = a.pd.srd(&a.cq).depth(4, 4).rnr_retry(1).build().unwrap();
    let sent = impatient.send(&to_b, filled(&a.pd, 100, 1)).unwrap();
    let error = next(&a.cq).ok().unwrap_err();
    assert_eq!((error.0.id, error.0.status), (Some(sent), Status::Rnr));
    b.qp.recv(b.pd.buf(99).unwrap()).unwrap();
    impatient.send(&to_b, error.0.buf.unwrap()).unwrap();
    let done = next(&a.cq);
    assert_eq!(done.status, Status::RemoteBadLength);
    let mut buf = done.buf.unwrap();
    buf.set_len(99);
    impatient.send(&to_b, buf).unwrap();
    next(&a.cq).ok().unwrap();
    assert_eq!(next(&b.cq).ok().unwrap().buf.unwrap().len(), 99, "the receive was still there");
}

fn completion_queues_have_room_for_all_that_can_complete(units: [u16; 2]) {
    let device = device(units[0]);
    let (pd, cq) = (device.pd().unwrap(), device.cq(64).unwrap());
    let first = pd.srd(&cq).depth(16, 16).build().unwrap();
    let second = pd.srd(&cq).depth(16, 16).build().unwrap();
    let error = pd.srd(&cq).depth(1, 1).build().unwrap_err();
    assert!(error.to_string().contains("too small"), "{error}");
    let more = device.cq(64).unwrap();
    pd.srd(&more).depth(64, 1).build().unwrap_err();
    drop((first, second));
    pd.srd(&more).depth(32, 64).recv_cq(&cq).build().unwrap();
}

/// Both cards have a queue of that number.
fn completion_queues_of_other_devices_are_refused(units: [u16; 2]) {
    let [a, b] = units.map(side);
    for wrong in [a.pd.srd(&b.cq), a.pd.srd(&b.cq).recv_cq(&a.cq), a.pd.srd(&a.cq).recv_cq(&b.cq)] {
        assert!(wrong.build().unwrap_err().to_string().contains("of another device"));
    }
    assert!(a.pd.ud(&b.cq).build().is_err());
}

fn everything_may_go_in_any_order(units: [u16; 2]) {
    for order in 0..6 {
        let (a, b, to_b, to_a) = pair(units);
        // Some is under way, and some completions are unread.
        for n in 0..8 {
            b.qp.recv(b.pd.buf(100).unwrap()).unwrap();
            a.qp.send(&to_b, filled(&a.pd, 50 + 5 * n, 1)).unwrap();
        }
        let _ = b.cq.poll();
        let Side { qp, cq, pd, device } = a;
        match order {
            0 => drop((qp, cq, pd, device, to_b, to_a)),
            1 => drop((device, pd, cq, to_b, qp)),
            2 => drop((to_b, device, qp, pd, cq)),
            3 => drop((cq, device, to_b, pd, qp)),
            4 => {
                drop(qp);
                assert!(cq.wait(Some(Duration::from_millis(20))).unwrap().is_none(), "what was cancelled is silent");
            }
            // A handle that is dropped lives as long as its requests.
            _ => {
                drop(to_b);
                for _ in 0..3 {
                    assert_eq!(next(&cq).status, Status::Ok);
                }
            }
        }
    }
}

fn datagrams_show_their_payload_only(units: [u16; 2]) {
    let [a, b] = units.map(side);
    let (qa, qb) = (a.pd.ud(&a.cq).depth(4, 4).build().unwrap(), b.pd.ud(&b.cq).depth(4, 4).build().unwrap());
    let to_b = a.pd.target(qb.address()).unwrap();
    assert!(qb.recv(b.pd.buf(39).unwrap()).is_err());
    qb.recv(b.pd.buf(140).unwrap()).unwrap();
    qa.send(&to_b, filled(&a.pd, 100, 8)).unwrap();
    next(&a.cq).ok().unwrap();
    let got = next(&b.cq).ok().unwrap();
    assert_eq!(got.buf.as_deref(), Some(&[8; 100][..]));
    // Its contents can be sent on as they are.
    let back = b.pd.address_handle(got.source.unwrap().gid).unwrap().qp(qa.address().qpn, qa.address().qkey);
    qa.recv(a.pd.buf(140).unwrap()).unwrap();
    qb.send(&back, got.buf.unwrap()).unwrap();
    assert_eq!(next(&a.cq).ok().unwrap().buf.as_deref(), Some(&[8; 100][..]));
}

fn unsolicited_writes_take_no_receive(units: [u16; 2]) {
    let [a, b] = units.map(side);
    let qa = a.pd.srd(&a.cq).depth(8, 1).unsolicited_writes().build().unwrap();
    let qb = b.pd.srd(&b.cq).depth(8, 1).unsolicited_writes().build().unwrap();
    let (to_b, _to_a) = (a.pd.target(qb.address()).unwrap(), b.pd.target(qa.address()).unwrap());
    let window = b.pd.window(100, false, true).unwrap();
    qa.write(&to_b, filled(&a.pd, 10, 1), window.remote(), Some(6)).unwrap();
    next(&a.cq).ok().unwrap();
    let told = next(&b.cq).ok().unwrap();
    assert_eq!((told.id, told.imm, told.written, told.buf.is_none()), (None, Some(6), 10, true));
    assert!(!b.cq.overrun());
    // One that does not expect it refuses it.
    let (to_plain, buf) = (a.pd.target(b.qp.address()).unwrap(), a.pd.buf(1).unwrap());
    qa.write(&to_plain, buf, window.remote(), Some(6)).unwrap();
    assert_eq!(next(&a.cq).status, Status::FeatureMismatch);
    // And whoever never reads loses some, which shows.
    for n in 0..200 {
        qa.write(&to_b, a.pd.buf(1).unwrap(), window.remote(), Some(n)).unwrap();
        next(&a.cq).ok().unwrap();
    }
    assert!(b.cq.overrun());
    assert_eq!(std::iter::from_fn(|| b.cq.poll()).count(), 64);
}

fn a_file_descriptor_tells_of_completions(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    b.qp.recv(b.pd.buf(100).unwrap()).unwrap();
    assert!(!b.cq.arm());
    a.qp.send_inline(&to_b, b"x", None).unwrap();
    let mut fds = [PollFd::new(b.cq.as_fd(), PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut fds, PollTimeout::from(60_000u16)).unwrap(), 1);
    assert!(b.cq.arm(), "it is there already");
    b.cq.poll().unwrap().ok().unwrap();
    assert!(!b.cq.arm());
    assert_eq!(nix::poll::poll(&mut fds, PollTimeout::ZERO).unwrap(), 0, "of the last one it told");
    let start = Instant::now();
    assert!(b.cq.wait(Some(Duration::from_millis(30))).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(30));
}

/// One waits for the descriptor; others come, see that there is something, and take one each.
fn whoever_waits_learns_of_what_others_leave(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    assert!(!b.cq.arm());
    for _ in 0..3 {
        b.qp.recv(b.pd.buf(100).unwrap()).unwrap();
        a.qp.send_inline(&to_b, b"x", None).unwrap();
        next(&a.cq).ok().unwrap();
    }
    for _ in 0..2 {
        assert!(b.cq.arm());
        b.cq.poll().unwrap().ok().unwrap();
    }
    let mut fds = [PollFd::new(b.cq.as_fd(), PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut fds, PollTimeout::ZERO).unwrap(), 1, "there is a third");
    b.cq.poll().unwrap().ok().unwrap();
    assert!(!b.cq.arm());
    assert_eq!(nix::poll::poll(&mut fds, PollTimeout::ZERO).unwrap(), 0);
}

fn time_to_wait_may_be_for_ever(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    b.qp.recv(b.pd.buf(100).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.cq.wait(Some(Duration::MAX)).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        a.qp.send_inline(&to_b, b"x", None).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().status, Status::Ok);
    });
}

fn futures_that_are_dropped_keep_no_task(units: [u16; 2]) {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let b = side(units[0]);
    let tasks = [(); 2].map(|()| Arc::new(Task));
    let mut next = b.cq.next();
    for task in &tasks {
        // Of two tasks that poll it one after the other, the last is woken.
        let waker = task.clone().into();
        assert!(pin!(&mut next).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(tasks.each_ref().map(Arc::strong_count), [1, 2]);
    drop(next);
    assert_eq!(tasks.each_ref().map(Arc::strong_count), [1, 1]);
}

fn tasks_await_completions_of_one_queue(units: [u16; 2]) {
    let (a, b, to_b, _to_a) = pair(units);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            b.qp.recv(b.pd.buf(100).unwrap()).unwrap();
            let cq = b.cq.clone();
            std::thread::spawn(move || pollster::block_on(cq.next()).ok().unwrap().buf.unwrap().to_vec())
        })
        .collect();
    for n in 0..4u8 {
        a.qp.send_inline(&to_b, &[n], None).unwrap();
    }
    let mut got: Vec<_> = waiting.into_iter().map(|w| w.join().unwrap()).collect();
    got.sort_unstable();
    assert_eq!(got, [[0], [1], [2], [3]]);
}

fn a_receive_that_is_posted_just_after_the_send_is_not_too_late(units: [u16; 2]) {
    let (a, b, to_b, to_a) = pair(units);
    let (mut buf_a, mut buf_b) = (a.pd.buf(8).unwrap(), b.pd.buf(8).unwrap());
    let take = |cq: &CompletionQueue| {
        // Two completions, in any order; one has the buffer.
        let (first, second) = (next(cq).ok().unwrap(), next(cq).ok().unwrap());
        first.buf.or(second.buf).unwrap()
    };
    for _ in 0..2000 {
        a.qp.send_inline(&to_b, b"ping", None).unwrap();
        b.qp.send_inline(&to_a, b"pong", None).unwrap();
        a.qp.recv(buf_a).unwrap();
        b.qp.recv(buf_b).unwrap();
        (buf_a, buf_b) = (take(&a.cq), take(&b.cq));
    }
}

fn queue_pairs_are_made_and_dropped_by_many_threads_at_once(units: [u16; 2]) {
    let [a, b] = units.map(device);
    let (pd_a, pd_b) = (a.pd().unwrap(), b.pd().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..40 {
                    let (cq_a, cq_b) = (a.cq(64).unwrap(), b.cq(64).unwrap());
                    let (qp_a, qp_b) = (pd_a.srd(&cq_a).build().unwrap(), pd_b.srd(&cq_b).build().unwrap());
                    let to_b = pd_a.target(qp_b.address()).unwrap();
                    for n in 0..8 {
                        qp_b.recv(pd_b.buf(1000).unwrap()).unwrap();
                        qp_a.send(&to_b, filled(&pd_a, 100 * n, 1)).unwrap();
                    }
                    // Some go in the middle of it, some after all is done.
                    for _ in 0..round % 9 {
                        next(&cq_a).ok().unwrap();
                    }
                }
            });
        }
    });
    let counters = a.counters().device;
    assert_eq!(counters.cmds_err, 0);
}

#[test]
fn everything_may_go_to_other_threads() {
    fn may<T: Send + Sync + 'static>() {}
    may::<(Device, Pd, AddressHandle, Target, CompletionQueue)>();
    may::<(QpBuilder<Srd>, QueuePair<Srd>, QueuePair<Ud>, Next<'static>)>();
    may::<(Buf, Window, Completion, Refused, WorkError)>();
}

/// In one domain, each for another card.
#[test]
fn there_are_as_many_peers_as_address_handles() {
    let config = NicConfig::at((Ipv4Addr::LOCALHOST, 0).into());
    let most = config.card.profile.max_ah as u16;
    let pd = Device::open(config).expect("a card on loopback").pd().unwrap();
    let handle =
        |n: u16| pd.address_handle(Gid::new((Ipv4Addr::new(127, 1, (n >> 8) as u8, n as u8), 9).into()).unwrap());
    let all: Vec<_> = (0..most).map(|n| handle(n).unwrap()).collect();
    let error = handle(most).unwrap_err();
    assert!(error.to_string().contains("no more address handles"), "{error}");
    drop(all);
    handle(most).unwrap();
}

fn addresses_are_told_as_text(units: [u16; 2]) {
    let a = side(units[0]);
    let text = a.qp.address().to_string();
    assert_eq!(text.parse::<QpAddress>().unwrap(), a.qp.address());
    for bad in ["", "::1/1", "::1/1/5", "::1/70000/0x1", "::1/1/0x1/2"] {
        assert!(bad.parse::<QpAddress>().is_err(), "{bad}");
    }
    assert!(a.pd.target("::/1/0x1".parse().unwrap()).is_err());
}
