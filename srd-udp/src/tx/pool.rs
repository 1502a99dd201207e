//! The pool of source ports: one socket each, opened on first use.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use socket2::Socket;
use srd_core::SourcePort;

use crate::error::BindError;
use crate::options::UdpOptions;
use crate::socket::{any_port, open_path};
use crate::stats::UdpStats;
use crate::sys::NoCancel;

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
            let _whole = NoCancel::begin();
            match open_path(self.local, self.range.as_ref(), self.send_buffer) {
                Ok(socket) => {
                    stats.sockets_open += 1;
                    // A socket bound to no address would take the one that the route to this peer wants for all peers.
                    let connected = !self.local.ip().is_unspecified() && socket.connect(&to.into()).is_ok();
                    *slot = Some(PathSocket { socket, peer: connected.then_some(to) });
                }
                Err(e) => {
                    if stats.socket_failures == 0 {
                        let error = BindError::new("open", any_port(self.local), e);
                        tracing::warn!("paths of the device at {} have no sockets: {}", self.local, error.whole());
                    }
                    stats.socket_failures += 1;
                }
            }
        }
        slot.as_ref()
    }

    /// Closes the socket of `port` if its peer was taken from it, and with it the port number, as whoever destroys sockets does
    /// (`ss -K`). It is opened anew for the next burst.
    pub(super) fn renew(&mut self, port: SourcePort, stats: &mut UdpStats) {
        let slot = &mut self.sockets[usize::from(port.0)];
        if slot.as_ref().is_some_and(|path| path.peer.is_some() && path.socket.peer_addr().is_err()) {
            *slot = None;
            stats.sockets_open -= 1;
        }
    }

    /// The UDP port number behind `port`, once its socket is open.
    pub(crate) fn number(&self, port: SourcePort) -> Option<u16> {
        let path = self.sockets.get(usize::from(port.0))?.as_ref()?;
        Some(path.socket.local_addr().ok()?.as_socket()?.port())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// Counts the lines of a log.
    struct Log(Arc<AtomicU32>);

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn paths_without_sockets_are_told_once() {
        let holder = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let taken = holder.local_addr().expect("bound");
        let port = taken.port();
        let options = UdpOptions { source_port_range: Some(port..=port), source_ports: 2, ..UdpOptions::default() };
        let (mut pool, mut stats) = (Pool::new(taken, &options), UdpStats::default());
        let lines = Arc::new(AtomicU32::new(0));
        tracing::subscriber::with_default(Log(lines.clone()), || {
            for port in [0, 1, 0, 1] {
                assert!(pool.get(SourcePort(port), taken, &mut stats).is_none());
            }
        });
        assert_eq!((stats.socket_failures, lines.load(Ordering::Relaxed)), (4, 1));
    }
}
