//! Stand-ins: empty libraries that have a name and need ours.
//!
//! A module that asks for `libibverbs-1a2b3c4d.so.1` gets whatever library of that name (`DT_SONAME`) is loaded already, and only
//! else one from the directory that is built into it. So a library with that name is loaded in advance. It has no symbols; what the
//! module uses is found in ours, which is loaded in advance as well and comes first. The stand-in claims to define the versions
//! that ours defines, because the loader looks for them where the module says that they are.
//!
//! ```text
//! ELF header | 3 program headers | dynamic section | symbol 0 | hash table | version of symbol 0 | versions | strings
//! ```

use object::elf;

use super::elf::machine;

/// The name of our library.
const OURS: &str = "libibverbs.so.1";
/// Pages of any machine that we know.
const ALIGN: u64 = 0x10000;
const HEADER: u64 = 64;
const SEGMENT: u64 = 56;
const SEGMENTS: u64 = 3;
const DYNAMIC: u64 = HEADER + SEGMENTS * SEGMENT;
const ENTRIES: u64 = 11;
const SYMBOLS: u64 = DYNAMIC + ENTRIES * 16;
const SYMBOL: u64 = 24;
const HASH: u64 = SYMBOLS + SYMBOL;
const SYMBOL_VERSIONS: u64 = HASH + 16;
const VERSIONS: u64 = SYMBOL_VERSIONS + 8;
/// A definition of a version, and its one name.
const VERSION: u64 = 28;

/// The file of a stand-in called `name`, which defines `versions`.
pub(super) fn build(name: &str, versions: &[String]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut string = |text: &str| {
        let at = strings.len();
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at as u32
    };
    let (own, needed) = (string(name), string(OURS));
    // The first definition is that of the file itself.
    let definitions: Vec<(&str, u32)> =
        std::iter::once((name, own)).chain(versions.iter().map(|v| (v.as_str(), string(v)))).collect();
    let strings_at = VERSIONS + definitions.len() as u64 * VERSION;
    let len = strings_at + strings.len() as u64;

    let mut out = Out(Vec::with_capacity(len as usize));
    out.header();
    out.segment(elf::PT_LOAD, elf::PF_R | elf::PF_W, 0, len, ALIGN);
    out.segment(elf::PT_DYNAMIC, elf::PF_R | elf::PF_W, DYNAMIC, ENTRIES * 16, 8);
    // Without this, the loader would make stacks executable.
    out.segment(elf::PT_GNU_STACK, elf::PF_R | elf::PF_W, 0, 0, 16);
    for (tag, value) in [
        (elf::DT_NEEDED, needed.into()),
        (elf::DT_SONAME, own.into()),
        (elf::DT_STRTAB, strings_at),
        (elf::DT_STRSZ, strings.len() as u64),
        (elf::DT_SYMTAB, SYMBOLS),
        (elf::DT_SYMENT, SYMBOL),
        (elf::DT_HASH, HASH),
        (elf::DT_VERSYM, SYMBOL_VERSIONS),
        (elf::DT_VERDEF, VERSIONS),
        (elf::DT_VERDEFNUM, definitions.len() as u64),
        (elf::DT_NULL, 0),
    ] {
        out.u64(tag.into());
        out.u64(value);
    }
    out.0.resize(HASH as usize, 0);
    // One bucket, one symbol, both the empty one.
    [1, 1, 0, 0].into_iter().for_each(|n| out.u32(n));
    out.u64(0);
    for (k, &(text, at)) in definitions.iter().enumerate() {
        let last = k + 1 == definitions.len();
        out.u16(elf::VER_DEF_CURRENT);
        out.u16(if k == 0 { elf::VER_FLG_BASE } else { 0 });
        out.u16(k as u16 + 1);
        out.u16(1);
        out.u32(elf::hash(text.as_bytes()));
        out.u32(20);
        out.u32(if last { 0 } else { VERSION as u32 });
        out.u32(at);
        out.u32(0);
    }
    out.0.extend_from_slice(&strings);
    out.0
}

/// What is written so far, in the byte order of this machine.
struct Out(Vec<u8>);

impl Out {
    fn u16(&mut self, n: u16) {
        self.0.extend_from_slice(&n.to_ne_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.0.extend_from_slice(&n.to_ne_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_ne_bytes());
    }

    fn header(&mut self) {
        let order = if cfg!(target_endian = "big") { elf::ELFDATA2MSB } else { elf::ELFDATA2LSB };
        self.0.extend_from_slice(&elf::ELFMAG);
        self.0.extend_from_slice(&[
            elf::ELFCLASS64,
            order,
            elf::EV_CURRENT,
            elf::ELFOSABI_SYSV,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ]);
        self.u16(elf::ET_DYN);
        self.u16(machine());
        self.u32(elf::EV_CURRENT.into());
        self.u64(0);
        self.u64(HEADER);
        self.u64(0);
        self.u32(0);
        self.u16(HEADER as u16);
        self.u16(SEGMENT as u16);
        self.u16(SEGMENTS as u16);
        self.u16(64);
        self.u16(0);
        self.u16(0);
    }

    /// A part of the file that is mapped where it is.
    fn segment(&mut self, kind: u32, flags: u32, at: u64, len: u64, align: u64) {
        self.u32(kind);
        self.u32(flags);
        for n in [at, at, at, len, len, align] {
            self.u64(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::elf::Elf;

    #[test]
    fn it_has_its_name_and_needs_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, build("libefa-1a2b.so.1", &["EFA_1.0".into(), "EFA_1.1".into()])).expect("write");
        let elf = Elf::read(&file).expect("ELF");
        assert!(elf.native && elf.loader.is_none());
        assert_eq!((elf.soname.as_deref(), &elf.needed[..]), (Some("libefa-1a2b.so.1"), &[OURS.to_owned()][..]));
    }
}
