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
    sockets: Vec<Option<PathSocket>>,
    /// Address to send from; the port means nothing.
    local: SocketAddr,
    range: Option<RangeInclusive<u16>>,
    send_buffer: usize,
}

/// The socket of a source port.
#[derive(Debug)]
pub(super) struct PathSocket {
    pub(super) socket: Socket,
    /// The peer that it is connected to: the kernel need not look its route up again for each call. It sends to others all
    /// the same, as long as they are named.
    pub(super) peer: Option<SocketAddr>,
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

    /// The socket of `port`, connected to `to` if that is the first peer that it is used for. `None` if it cannot be opened now; the next call tries again.
    ///
    /// # Panics
    /// If `port` is not in the pool: the core was configured for a larger one.
    pub(super) fn get(&mut self, port: SourcePort, to: SocketAddr, stats: &mut UdpStats) -> Option<&PathSocket> {
        let index = usize::from(port.0);
        assert!(index < self.sockets.len(), "source port {index} of a pool of {}", self.sockets.len());
        let slot = &mut self.sockets[index];
        if slot.is_none() {
            match open_path(self.local, self.range.as_ref(), self.send_buffer) {
                Ok(socket) => {
                    stats.sockets_open += 1;
                    // A socket bound to no address would take the one that the route to this peer wants for all peers.
                    let connected = !self.local.ip().is_unspecified() && socket.connect(&to.into()).is_ok();
                    *slot = Some(PathSocket { socket, peer: connected.then_some(to) });
                }
                Err(_) => stats.socket_failures += 1,
            }
        }
        slot.as_ref()
    }

    /// The UDP port number behind `port`, once its socket is open.
    pub(crate) fn number(&self, port: SourcePort) -> Option<u16> {
        let path = self.sockets.get(usize::from(port.0))?.as_ref()?;
        Some(path.socket.local_addr().ok()?.as_socket()?.port())
    }
}
