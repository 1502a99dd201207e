//! One message from one device to another, both in this process: `cargo run -p verbs-shim --example send`.

use verbs_shim::api::Device;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (alice, bob) = (Device::loopback()?, Device::loopback()?);
    let (pd_a, pd_b) = (alice.pd()?, bob.pd()?);
    let (cq_a, cq_b) = (alice.cq(64)?, bob.cq(64)?);
    let (qp_a, qp_b) = (pd_a.srd(&cq_a).build()?, pd_b.srd(&cq_b).build()?);

    // A message needs a buffer that waits for it.
    qp_b.recv(pd_b.buf(4096)?)?;
    let mut hello = pd_a.buf(5)?;
    hello.copy_from_slice(b"hello");
    qp_a.send(&pd_a.target(qp_b.address())?, hello)?;

    let received = cq_b.wait(None)?.expect("no timeout").ok()?;
    let from = received.source.expect("it was received");
    println!("{:?} from QP {} at {}", received.buf.as_deref(), from.qpn, from.gid);
    // Success means that the message is in the buffer of the receiver.
    cq_a.wait(None)?.expect("no timeout").ok()?;
    Ok(())
}
