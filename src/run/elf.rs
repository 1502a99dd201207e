//! What an ELF file asks of the dynamic loader.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache, ReadRef, StringTable};

/// An ELF file, as far as the loader is concerned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Elf {
    /// Whether it is for this machine: 64 bits, and the same instruction set as this command.
    pub(super) native: bool,
    /// The loader that it asks for; `None` for static programs and for libraries.
    pub(super) loader: Option<PathBuf>,
    /// Libraries that it needs, by name.
    pub(super) needed: Vec<String>,
    /// Its own name as a library.
    pub(super) soname: Option<String>,
    /// Directories in which the loader looks before `LD_LIBRARY_PATH` (`DT_RPATH`, where there is no `DT_RUNPATH`).
    pub(super) rpath: Vec<String>,
    /// Versions that its symbols have, without that of the file itself.
    pub(super) versions: Vec<String>,
}

impl Elf {
    /// Reads a file; `None` if it is not ELF, or damaged.
    pub(super) fn read(path: &Path) -> Option<Elf> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let data = &cache;
        if data.read_bytes_at(0, 4).ok()? != elf::ELFMAG {
            return None;
        }
        // Files of 32 bits have another header.
        let Ok(header) = FileHeader64::<Endianness>::parse(data) else { return Some(Elf::default()) };
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let mut found = Elf { native: header.e_machine(endian) == machine(), ..Elf::default() };
        for segment in segments {
            if let Ok(Some(loader)) = segment.interpreter(endian, data) {
                found.loader = Some(PathBuf::from(String::from_utf8_lossy(loader).into_owned()));
            }
        }
        let entries = segments.iter().find_map(|s| s.dynamic(endian, data).ok().flatten()).unwrap_or_default();
        let value = |tag: u32| entries.iter().find(|d| d.tag32(endian) == Some(tag)).map(|d| d.d_val(endian));
        let (Some(at), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else { return Some(found) };
        let strings = segments.iter().find_map(|s| s.data_range(endian, data, at, size).ok().flatten())?;
        let strings = StringTable::new(strings, 0, strings.len() as u64);
        let text = |d: &_| text(endian, d, strings);
        let all = |tag: u32| entries.iter().filter(move |d| d.tag32(endian) == Some(tag)).filter_map(text);
        found.versions = versions(header, endian, data).unwrap_or_default();
        found.needed = all(elf::DT_NEEDED).collect();
        found.soname = all(elf::DT_SONAME).next();
        if value(elf::DT_RUNPATH).is_none() {
            found.rpath =
                all(elf::DT_RPATH).flat_map(|dirs| dirs.split(':').map(str::to_owned).collect::<Vec<_>>()).collect();
        }
        Some(found)
    }
}

/// The names of all versions that are defined.
fn versions(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: &ReadCache<File>,
) -> object::read::Result<Vec<String>> {
    let sections = header.sections(endian, data)?;
    let mut names = Vec::new();
    let Some((mut all, strings)) = sections.gnu_verdef(endian, data)? else { return Ok(names) };
    let strings = sections.strings(endian, data, strings)?;
    while let Some((definition, mut aux)) = all.next()? {
        let base = definition.vd_flags.get(endian) & elf::VER_FLG_BASE != 0;
        if let Some(name) = aux.next()?.filter(|_| !base) {
            names.push(String::from_utf8_lossy(name.name(endian, strings)?).into_owned());
        }
    }
    Ok(names)
}

fn text<'d>(endian: Endianness, entry: &elf::Dyn64<Endianness>, strings: StringTable<'d, &'d [u8]>) -> Option<String> {
    let text = strings.get(u32::try_from(entry.d_val(endian)).ok()?).ok()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The instruction set that this command is for.
pub(super) fn machine() -> u16 {
    match std::env::consts::ARCH {
        "x86_64" => elf::EM_X86_64,
        "aarch64" => elf::EM_AARCH64,
        "riscv64" => elf::EM_RISCV,
        _ => elf::EM_NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_native_and_needs_libc() {
        let own = Elf::read(&std::env::current_exe().expect("a name")).expect("ELF");
        assert!(own.native && own.loader.is_some(), "{own:?}");
        assert!(own.needed.iter().any(|n| n.starts_with("libc.so")), "{own:?}");
    }

    #[test]
    fn what_is_damaged_is_no_elf() {
        let whole = std::fs::read(std::env::current_exe().expect("a name")).expect("read");
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        for len in [0, 3, 4, 16, 63, 64, 100, 500] {
            std::fs::write(&file, &whole[..len]).expect("write");
            // Anything but a panic will do.
            let _ = Elf::read(&file);
        }
        std::fs::write(&file, "#!/bin/sh\n").expect("write");
        assert_eq!(Elf::read(&file), None);
    }
}
