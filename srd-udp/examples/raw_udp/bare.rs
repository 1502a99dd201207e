//! Datagrams through plain sockets: one system call per burst, nothing else.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use anyhow::Context;
use nix::sys::socket::{setsockopt, sockopt};

/// See the module documentation.
pub(crate) struct Bare {
    /// One per source port; the first one receives.
    sockets: Vec<UdpSocket>,
    /// Segment size that the sockets are set to, each.
    segments: Vec<usize>,
    buf: Vec<u8>,
}

/// What to ask for; the kernel doubles it.
const RECV_BUFFER: usize = 16 << 20;

impl Bare {
    pub(crate) fn open(local: SocketAddr, ports: u16) -> anyhow::Result<Bare> {
        let open = |i: u16| -> anyhow::Result<UdpSocket> {
            let addr = if i == 0 { local } else { SocketAddr::new(local.ip(), 0) };
            let socket = UdpSocket::bind(addr).with_context(|| format!("cannot bind to {addr}"))?;
            socket.set_nonblocking(true)?;
            if setsockopt(&socket, sockopt::RcvBufForce, &RECV_BUFFER).is_err() {
                setsockopt(&socket, sockopt::RcvBuf, &RECV_BUFFER)?;
            }
            setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
            Ok(socket)
        };
        let sockets = (0..ports).map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Bare { segments: vec![0; sockets.len()], sockets, buf: vec![0; 65535] })
    }
}

impl crate::Transport for Bare {
    fn port(&self) -> u16 {
        self.sockets[0].local_addr().map_or(0, |addr| addr.port())
    }

    fn send(&mut self, to: SocketAddr, port: u16, bytes: &[u8], segment: usize) -> anyhow::Result<()> {
        let i = usize::from(port);
        if self.segments[i] != segment && bytes.len() > segment {
            setsockopt(&self.sockets[i], sockopt::UdpGsoSegment, &(segment as i32))?;
            self.segments[i] = segment;
        }
        match self.sockets[i].send_to(bytes, to) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e.into()),
            _ => Ok(()),
        }
    }

    fn recv(&mut self, sink: &mut dyn FnMut(SocketAddr, &[u8])) -> anyhow::Result<()> {
        match self.sockets[0].recv_from(&mut self.buf) {
            Ok((len, from)) => {
                sink(from, &self.buf[..len]);
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
