//! The same by a driver: payload is gathered and copied, headers and checksums are made and verified.

use std::net::SocketAddr;

use srd_core::{Driver, Gather, SourcePort, Token, TxBatch};

use crate::{BATCH, End, PORTS};

struct Payload(Vec<u8>);

impl Gather for Payload {
    fn payload(&self, _: Token, offset: u32, len: usize) -> &[u8] {
        &self.0[offset as usize..][..len]
    }
}

struct Driven<D> {
    driver: D,
    payload: Payload,
    many: TxBatch,
    one: TxBatch,
}

/// Ends made of drivers.
pub(crate) fn pair<D: Driver + Send + 'static>(a: D, b: D, size: usize) -> [Box<dyn End>; 2] {
    let (to_a, to_b) = (a.local_addr(), b.local_addr());
    [Box::new(Driven::new(a, to_b, size)), Box::new(Driven::new(b, to_a, size))]
}

impl<D: Driver> Driven<D> {
    fn new(driver: D, to: SocketAddr, size: usize) -> Driven<D> {
        let per_port = BATCH / usize::from(PORTS);
        let (mut many, mut one) = (TxBatch::new(), TxBatch::new());
        for port in 0..PORTS {
            let mut burst = many.burst(to, SourcePort(port), size);
            burst.payload(Token(0), 0, (per_port * size) as u32);
            burst.finish();
        }
        let mut burst = one.burst(to, SourcePort(0), size);
        burst.payload(Token(0), 0, size as u32);
        burst.finish();
        Driven { driver, payload: Payload(vec![7; per_port * size]), many, one }
    }
}

impl<D: Driver + Send> End for Driven<D> {
    fn send_many(&mut self) -> anyhow::Result<()> {
        Ok(self.driver.send(&self.many, &self.payload)?)
    }

    fn send_one(&mut self) -> anyhow::Result<()> {
        Ok(self.driver.send(&self.one, &self.payload)?)
    }

    fn receive(&mut self) -> anyhow::Result<usize> {
        // As an engine does: the time of its turn is the time of arrivals.
        self.driver.now();
        let received = self.driver.recv(&mut |_, _| ())?;
        if received == 0 {
            self.driver.wait(None)?;
        }
        Ok(received)
    }
}
