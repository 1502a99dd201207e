//! An assembler for the kernel's virtual machine: the few instructions that the program needs, and labels.
//!
//! Jumps are written with names; [`Assembler::finish`] turns these into distances.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::Insn;

/// A register. R0 is the result, R1 to R5 are arguments and lost over calls, R6 to R9 survive them, R10 is the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "numbers")]
pub(crate) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Width of a load or store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Width {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

/// Arithmetic on 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Alu {
    Add = 0x00,
    And = 0x50,
    Mov = 0xb0,
}

/// Conditions of jumps, unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum If {
    Eq = 0x10,
    Gt = 0x20,
    Ne = 0x50,
}

/// Functions of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Helper {
    /// `void *bpf_map_lookup_elem(map, key)`
    MapLookup = 1,
    /// `u64 bpf_ktime_get_ns()`
    KtimeNs = 5,
    /// `long bpf_redirect_map(map, key, flags)`
    RedirectMap = 51,
    /// `u64 bpf_xdp_get_buff_len(ctx)`
    BuffLen = 188,
}

// Classes and modes of `linux/bpf_common.h` and `linux/bpf.h`.
const LD_IMM64: u8 = 0x18;
const LDX_MEM: u8 = 0x61;
const ST_MEM: u8 = 0x62;
const STX_MEM: u8 = 0x63;
const STX_ATOMIC: u8 = 0xc3;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const FROM_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const MAP_FD: u8 = 1;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Insn>,
    labels: Vec<(&'static str, usize)>,
    jumps: Vec<(&'static str, usize)>,
}

impl Assembler {
    fn put(&mut self, code: u8, dst: Reg, src: u8, off: i16, imm: i32) {
        self.code.push(Insn { code, regs: dst as u8 | src << 4, off, imm });
    }

    /// `dst = *(width *)(src + off)`
    pub(crate) fn load(&mut self, width: Width, dst: Reg, src: Reg, off: i16) {
        self.put(LDX_MEM | width as u8, dst, src as u8, off, 0);
    }

    /// `*(width *)(dst + off) = src`
    pub(crate) fn store(&mut self, width: Width, dst: Reg, off: i16, src: Reg) {
        self.put(STX_MEM | width as u8, dst, src as u8, off, 0);
    }

    /// `*(width *)(dst + off) = imm`
    pub(crate) fn store_imm(&mut self, width: Width, dst: Reg, off: i16, imm: i32) {
        self.put(ST_MEM | width as u8, dst, 0, off, imm);
    }

    /// `*(u64 *)dst += src`, atomically.
    pub(crate) fn atomic_add(&mut self, dst: Reg, src: Reg) {
        self.put(STX_ATOMIC | Width::Double as u8, dst, src as u8, 0, 0);
    }

    /// `dst = dst op src`
    pub(crate) fn alu(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.put(ALU64 | op as u8 | FROM_REGISTER, dst, src as u8, 0, 0);
    }

    /// `dst = dst op imm`
    pub(crate) fn alu_imm(&mut self, op: Alu, dst: Reg, imm: i32) {
        self.put(ALU64 | op as u8, dst, 0, 0, imm);
    }

    /// `dst = address of the map`
    pub(crate) fn map(&mut self, dst: Reg, map: BorrowedFd<'_>) {
        self.put(LD_IMM64, dst, MAP_FD, 0, map.as_raw_fd());
        self.put(0, Reg::R0, 0, 0, 0);
    }

    /// `r0 = helper(r1, ..)`
    pub(crate) fn call(&mut self, helper: Helper) {
        self.put(CALL, Reg::R0, 0, 0, helper as i32);
    }

    pub(crate) fn exit(&mut self) {
        self.put(EXIT, Reg::R0, 0, 0, 0);
    }

    pub(crate) fn jump(&mut self, to: &'static str) {
        self.jumps.push((to, self.code.len()));
        self.put(JMP, Reg::R0, 0, 0, 0);
    }

    pub(crate) fn jump_if(&mut self, a: Reg, cond: If, b: Reg, to: &'static str) {
        self.jumps.push((to, self.code.len()));
        self.put(JMP | cond as u8 | FROM_REGISTER, a, b as u8, 0, 0);
    }

    pub(crate) fn jump_if_imm(&mut self, a: Reg, cond: If, imm: i32, to: &'static str) {
        self.jumps.push((to, self.code.len()));
        self.put(JMP | cond as u8, a, 0, 0, imm);
    }

    /// Names the next instruction.
    pub(crate) fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.code.len()));
    }

    /// The program.
    ///
    /// # Panics
    /// If a jump leads nowhere.
    pub(crate) fn finish(mut self) -> Vec<Insn> {
        for (name, at) in self.jumps {
            let label = self.labels.iter().find(|(label, _)| *label == name);
            let (_, to) = label.unwrap_or_else(|| panic!("no label {name}"));
            self.code[at].off = (*to as isize - at as isize - 1) as i16;
        }
        self.code
    }
}
