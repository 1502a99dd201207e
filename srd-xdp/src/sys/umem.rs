//! The memory that packets live in, cut into frames.

use std::io;

use super::map::Mapping;

/// Number and size of frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UmemSize {
    /// Bytes per frame: 2048 or 4096.
    pub(crate) frame: u32,
    /// Frames.
    pub(crate) frames: u32,
    /// Bytes at the beginning of each that tell the kernel what to do with a packet to send, which follows; 0 or
    /// [`METADATA`].
    pub(crate) metadata: u32,
}

/// `sizeof(struct xsk_tx_metadata)`. Kernels before 6.11 refuse it.
pub(crate) const METADATA: u32 = size_of::<libc::xsk_tx_metadata>() as u32;

/// The right to read and write one frame. It belongs to the socket that handed it out. Neither `Clone` nor `Copy`: moved
/// into a ring, it is the kernel's.
#[derive(Debug)]
pub(crate) struct Frame(u32);

/// The memory; all of its frames are handed out once by [`Umem::new`].
#[derive(Debug)]
pub(super) struct Umem {
    map: Mapping,
    size: UmemSize,
    /// A frame has 1 << `shift` bytes.
    shift: u32,
}

impl Umem {
    pub(super) fn new(size: UmemSize) -> io::Result<(Umem, Vec<Frame>)> {
        assert!(size.frame.is_power_of_two(), "frames of {} bytes", size.frame);
        let map = Mapping::anonymous(size.frame as usize * size.frames as usize)?;
        Ok((Umem { map, size, shift: size.frame.trailing_zeros() }, (0..size.frames).map(Frame).collect()))
    }

    pub(super) fn frame_size(&self) -> usize {
        self.size.frame as usize
    }

    pub(super) fn is_huge(&self) -> bool {
        self.map.is_huge()
    }

    pub(super) fn metadata(&self) -> usize {
        self.size.metadata as usize
    }

    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.map.start() as u64,
            len: u64::from(self.size.frame) * u64::from(self.size.frames),
            chunk_size: self.size.frame,
            headroom: 0,
            flags: if self.size.metadata > 0 { libc::XDP_UMEM_TX_METADATA_LEN } else { 0 },
            tx_metadata_len: self.size.metadata,
        }
    }

    /// The kernel's name of a frame. Whoever passes it to the kernel must forget the frame.
    pub(super) fn address(&self, frame: &Frame) -> u64 {
        u64::from(frame.0) << self.shift
    }

    /// The frame that the kernel gives back by an address, and the offset in it. Only for addresses out of a ring, each
    /// once.
    ///
    /// # Panics
    /// If there is no such frame.
    pub(super) fn frame(&self, address: u64) -> (Frame, usize) {
        let (index, offset) = (address >> self.shift, address & u64::from(self.size.frame - 1));
        assert!(index < u64::from(self.size.frames), "the kernel speaks of frame {index} of {}", self.size.frames);
        (Frame(index as u32), offset as usize)
    }

    pub(super) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let start = self.map.at::<u8>(self.address(frame), self.frame_size());
        // SAFETY: the range is within the mapping (checked by `at`). A `Frame` exists once, and is borrowed for as long as the
        // bytes, so meanwhile neither the kernel nor `bytes_mut` writes there.
        unsafe { std::slice::from_raw_parts(start, self.frame_size()) }
    }

    pub(super) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = self.map.at::<u8>(self.address(frame), self.frame_size());
        // SAFETY: as above, and the frame is borrowed exclusively, so no other reference to its bytes lives.
        unsafe { std::slice::from_raw_parts_mut(start, self.frame_size()) }
    }
}
