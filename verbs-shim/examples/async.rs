//! An echo service and its client as tasks of any executor: `cargo run -p verbs-shim --example async`.

use verbs_shim::api::{Device, QpAddress};
use verbs_shim::card::Opcode;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn echo(device: Device, tell: impl FnOnce(QpAddress), rounds: usize) -> Outcome {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let qp = pd.srd(&cq).build()?;
    pd.bufs(8, 4096)?.into_iter().try_for_each(|buf| qp.recv(buf).map(drop))?;
    tell(qp.address());
    let mut answered = 0;
    while answered < rounds {
        let done = cq.next().await.ok()?;
        match (done.kind, done.source, done.buf) {
            // The answer goes back to where the message came from, in its own buffer; clients agree on a QKey.
            (Opcode::Recv, Some(from), Some(buf)) => drop(qp.send(&pd.address_handle(from.gid)?.qp(from.qpn, 5), buf)?),
            (Opcode::Send, None, Some(buf)) => {
                answered += 1;
                qp.recv(buf)?;
            }
            other => unreachable!("{other:?}"),
        }
    }
    Ok(())
}

async fn ask(device: Device, service: QpAddress, rounds: usize) -> Outcome {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let qp = pd.srd(&cq).qkey(5).build()?;
    let (to, mut buf) = (pd.target(service)?, pd.buf(4096)?);
    for _ in 0..rounds {
        qp.recv(buf)?;
        qp.send_inline(&to, b"are you there?", None)?;
        let (first, second) = (cq.next().await.ok()?, cq.next().await.ok()?);
        // Which of the two is done first is a matter of chance.
        buf = first.buf.or(second.buf).expect("the receive has one");
    }
    println!("{}", String::from_utf8_lossy(&buf));
    Ok(())
}

fn main() -> Outcome {
    let (tell, told) = std::sync::mpsc::channel();
    let device = Device::loopback()?;
    let service = std::thread::spawn(|| pollster::block_on(echo(device, move |a| tell.send(a).expect("main"), 100)));
    pollster::block_on(ask(Device::loopback()?, told.recv()?, 100))?;
    service.join().expect("no panic")
}
