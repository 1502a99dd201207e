//! The pool of source ports: one socket each, opened on first use.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use socket2::Socket;
use srd_core::SourcePort;

use crate::options::UdpOptions;
use crate::socket::open_path;
use crate::stats::UdpStats;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Pool {
    sockets: Vec<Option<Socket>>,
    /// Address to send from; the port means nothing.
    local: SocketAddr,
    range: Option<RangeInclusive<u16>>,
    send_buffer: usize,
}

impl Pool {
    pub(crate) fn new(local: SocketAddr, options: &UdpOptions) -> Pool {
        Pool {
            sockets: (0..options.source_ports).map(|_| None).collect(),
            local,
            range: options.source_port_range.clone(),
            send_buffer: options.send_buffer,
        }
    }

    /// Size of the pool.
    pub(crate) fn len(&self) -> u16 {
        self.sockets.len() as u16
    }

    /// The socket of `port`. `None` if it cannot be opened now; the next call tries again.
    ///
    /// # Panics
    /// If `port` is not in the pool: the core was configured for a larger one.
    pub(super) fn get(&mut self, port: SourcePort, stats: &mut UdpStats) -> Option<&Socket> {
        let index = usize::from(port.0);
        assert!(index < self.sockets.len(), "source port {index} of a pool of {}", self.sockets.len());
        let slot = &mut self.sockets[index];
        if slot.is_none() {
            match open_path(self.local, self.range.as_ref(), self.send_buffer) {
                Ok(socket) => {
                    stats.sockets_open += 1;
                    *slot = Some(socket);
                }
                Err(_) => stats.socket_failures += 1,
            }
        }
        slot.as_ref()
    }

    /// The UDP port number behind `port`, once its socket is open.
    pub(crate) fn number(&self, port: SourcePort) -> Option<u16> {
        let socket = self.sockets.get(usize::from(port.0))?.as_ref()?;
        Some(socket.local_addr().ok()?.as_socket()?.port())
    }
}
