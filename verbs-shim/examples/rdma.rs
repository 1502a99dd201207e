//! RDMA write and read: `cargo run -p verbs-shim --example rdma`.

use verbs_shim::api::Device;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (alice, bob) = (Device::loopback()?, Device::loopback()?);
    let (pd_a, pd_b) = (alice.pd()?, bob.pd()?);
    let (cq_a, cq_b) = (alice.cq(64)?, bob.cq(64)?);
    let (qp_a, qp_b) = (pd_a.srd(&cq_a).build()?, pd_b.srd(&cq_b).build()?);
    let (to_b, _to_a) = (pd_a.target(qp_b.address())?, pd_b.target(qp_a.address())?); // the target must know us, too

    let window = pd_b.window(1 << 20, true, true)?;
    let mut buf = pd_a.buf(300_000)?;
    buf.fill(7);
    qp_a.write(&to_b, buf, window.remote().slice(0..300_000), None)?;
    let buf = cq_a.wait(None)?.expect("no timeout").ok()?.buf.expect("it comes back");
    let mut there = [0; 3];
    window.read(299_997, &mut there);
    println!("written: {there:?}");

    window.write(0, b"from bob");
    qp_a.read(&to_b, buf, window.remote().slice(0..300_000))?;
    let buf = cq_a.wait(None)?.expect("no timeout").ok()?.buf.expect("it comes back");
    println!("read: {:?}", String::from_utf8_lossy(&buf[..8]));
    Ok(())
}
