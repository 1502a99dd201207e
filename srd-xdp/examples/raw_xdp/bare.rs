//! Rings and nothing else.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use anyhow::Context;
use testbed::Host;

use crate::asm::{Alu, Assembler, Helper, If, Reg, Width};
use crate::sys::{self, Attached, Frame, Link, Mode, Rings, SocketMap, UmemSize, Xsk};
use crate::{BATCH, End, PORTS};

const PORT: u16 = 7471;
const HEADERS: usize = 14 + 20 + 8;

pub(crate) struct Bare {
    // Before the link: first the socket closes.
    xsk: Xsk,
    free: Vec<Frame>,
    len: usize,
    /// Written to each datagram, if that is asked for.
    payload: Option<Vec<u8>>,
    _map: SocketMap,
    _link: Link,
}

/// The hardware address of a host's cable.
pub(crate) fn mac(host: &Host) -> anyhow::Result<[u8; 6]> {
    let out = host.command("cat").arg("/sys/class/net/eth0/address").output()?;
    let text = String::from_utf8(out.stdout)?;
    let bytes: Result<Vec<u8>, _> = text.trim().split(':').map(|b| u8::from_str_radix(b, 16)).collect();
    bytes?.try_into().map_err(|_| anyhow::anyhow!("'{text}' is no hardware address"))
}

impl Bare {
    /// `macs` and `addresses`: ours and the peer's.
    pub(crate) fn open(
        interface: &str,
        [from_mac, to_mac]: [[u8; 6]; 2],
        [from, to]: [Ipv4Addr; 2],
        size: usize,
        frames: u32,
        touch: bool,
    ) -> anyhow::Result<Bare> {
        let index = nix::net::if_::if_nametoindex(interface)?;
        let multi = HEADERS + size > 3800;
        anyhow::ensure!(!multi, "bare rings send datagrams of one frame, not {size} bytes");
        let frame = if size < 1700 { 2048 } else { 4096 };
        let map = SocketMap::create(c"raw_sockets", 64)?;
        let program = sys::load(c"raw_xdp", &program(&map)).context("load the program")?;
        let link = sys::attach(&program, index, Attached::Native).context("attach the program")?;
        let mode = Mode { zero_copy: false, multi: false };
        let size_of = UmemSize { frame, frames: 2 * frames, metadata: 0 };
        let (mut xsk, mut free) = Xsk::open(index, 0, size_of, Rings { rx: frames, tx: frames }, mode)?;
        map.set(0, xsk.as_fd())?;
        for frame in free.drain(frames as usize..) {
            xsk.fill(frame);
        }
        xsk.publish_fill();
        let len = HEADERS + size;
        for (i, frame) in free.iter_mut().enumerate() {
            let out = &mut xsk.packet_mut(frame)[..len];
            out[..6].copy_from_slice(&to_mac);
            out[6..12].copy_from_slice(&from_mac);
            out[12..14].copy_from_slice(&[8, 0]);
            let ip = &mut out[14..34];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&((28 + size) as u16).to_be_bytes());
            ip[8..10].copy_from_slice(&[64, 17]);
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
            let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            let sum = !((sum >> 16) + (sum & 0xffff)) as u16;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            out[34..36].copy_from_slice(&(40_000 + i as u16 % PORTS).to_be_bytes());
            out[36..38].copy_from_slice(&PORT.to_be_bytes());
            out[38..40].copy_from_slice(&((8 + size) as u16).to_be_bytes());
        }
        Ok(Bare { xsk, free, len, payload: touch.then(|| vec![7; size]), _map: map, _link: link })
    }

    fn send(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count.min(self.free.len()) {
            let mut frame = self.free.pop().expect("counted");
            if let Some(payload) = &self.payload {
                self.xsk.packet_mut(&mut frame)[HEADERS..self.len].copy_from_slice(payload);
            }
            self.xsk.transmit(frame, self.len, false, false);
        }
        self.xsk.publish_transmit();
        // An error here only says that not all was sent yet.
        while self.xsk.kick().is_err() || !self.xsk.is_transmitted() {}
        self.xsk.look_sent();
        while let Some(frame) = self.xsk.reap() {
            self.free.push(frame);
        }
        self.xsk.release_reaped();
        Ok(())
    }
}

impl End for Bare {
    fn send_many(&mut self) -> anyhow::Result<()> {
        self.send(BATCH)
    }

    fn send_one(&mut self) -> anyhow::Result<()> {
        self.send(1)
    }

    fn receive(&mut self) -> anyhow::Result<usize> {
        let mut count = 0;
        while count < BATCH
            && let Some(piece) = self.xsk.receive().or_else(|| {
                self.xsk.look();
                self.xsk.receive()
            })
        {
            if self.payload.is_some() {
                let bytes = &self.xsk.bytes(&piece.frame)[piece.offset..piece.offset + piece.len];
                std::hint::black_box(bytes.iter().fold(0u8, |sum, b| sum ^ b));
            }
            self.xsk.fill(piece.frame);
            count += 1;
        }
        if count > 0 {
            self.xsk.release_receive();
            self.xsk.publish_fill();
        }
        Ok(count)
    }
}

/// UDP over IPv4 without options to our port goes to the socket of its queue.
fn program(map: &SocketMap) -> Vec<sys::Insn> {
    use Reg::{R0, R1, R2, R3, R4};
    let mut a = Assembler::default();
    a.load(Width::Word, R2, R1, 0);
    a.load(Width::Word, R3, R1, 4);
    a.alu(Alu::Mov, R4, R2);
    a.alu_imm(Alu::Add, R4, HEADERS as i32);
    a.jump_if(R4, If::Gt, R3, "pass");
    for (width, at, value) in
        [(Width::Half, 12, 0x0800u16.to_be()), (Width::Byte, 23, 17), (Width::Half, 36, PORT.to_be())]
    {
        a.load(width, R4, R2, at);
        a.jump_if_imm(R4, If::Ne, value.into(), "pass");
    }
    a.load(Width::Word, R2, R1, 16);
    a.map(R1, map.as_fd());
    a.alu_imm(Alu::Mov, R3, 2);
    a.call(Helper::RedirectMap);
    a.exit();
    a.label("pass");
    a.alu_imm(Alu::Mov, R0, 2);
    a.exit();
    a.finish()
}
