//! Datagrams through `UdpDriver`, payload gathered from the caller's memory as with the core.

use std::net::SocketAddr;

use srd_core::{Driver, Gather, SourcePort, Token, TxBatch};
use srd_udp::{UdpDriver, UdpOptions, WaitMode};

/// See the module documentation.
pub(crate) struct Driven {
    driver: UdpDriver,
    /// Per source port, what was sent last: most bursts differ in nothing but their payload.
    batches: Vec<Prepared>,
}

#[derive(Default)]
struct Prepared {
    burst: Option<(SocketAddr, usize, usize)>,
    batch: TxBatch,
}

/// One message that is sent again and again.
struct Memory<'a>(&'a [u8]);

impl Gather for Memory<'_> {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.0[offset as usize..][..len]
    }
}

/// The first bytes of each datagram are a piece of their own, as the core's headers are.
const HEADER: usize = 32;

impl Driven {
    pub(crate) fn open(local: SocketAddr, ports: u16) -> anyhow::Result<Driven> {
        let options = UdpOptions { source_ports: ports, wait: WaitMode::Spin, ..UdpOptions::default() };
        let batches = (0..ports).map(|_| Prepared::default()).collect();
        Ok(Driven { driver: UdpDriver::bind(local, options)?, batches })
    }
}

impl crate::Transport for Driven {
    fn port(&self) -> u16 {
        self.driver.local_addr().port()
    }

    fn send(&mut self, to: SocketAddr, port: u16, bytes: &[u8], segment: usize) -> anyhow::Result<()> {
        let Prepared { burst, batch } = &mut self.batches[usize::from(port)];
        if *burst != Some((to, bytes.len(), segment)) {
            *burst = Some((to, bytes.len(), segment));
            batch.clear();
            let mut writer = batch.burst(to, SourcePort(port), segment);
            for (i, datagram) in bytes.chunks(segment).enumerate() {
                let header = HEADER.min(datagram.len());
                writer.payload(Token(0), (i * segment) as u32, header as u32);
                if header < datagram.len() {
                    writer.payload(Token(0), (i * segment + header) as u32, (datagram.len() - header) as u32);
                }
            }
            writer.finish();
        }
        self.driver.send(batch, &Memory(bytes))?;
        Ok(())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(SocketAddr, &[u8])) -> anyhow::Result<()> {
        self.driver.recv(&mut |meta, bytes| sink(meta.from, bytes))?;
        Ok(())
    }
}
