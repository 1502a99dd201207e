//! The program that is to run: where it is, and whether it can be given another library.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid};

use super::bundled;
use super::elf::Elf;
use crate::exit::{Fault, Result};

/// A program, as far as its libraries are concerned.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// Why it will not use our library, or may not: sentences.
    pub(crate) warnings: Vec<String>,
    /// Names under which the loader would find other libraries before ours.
    pub(crate) also: BTreeSet<String>,
}

/// Interpreters of interpreters of scripts end here, as in the kernel.
const MAX_INTERPRETERS: usize = 4;
/// The longest first line of a script that the kernel reads.
const MAX_SHEBANG: usize = 256;
/// Programs that start others on other hosts.
const LAUNCHERS: [&str; 6] = ["mpirun", "mpiexec", "orterun", "prterun", "srun", "mpiexec.hydra"];

/// Programs that start others as another user.
const OTHER_USERS: [&str; 5] = ["runuser", "setpriv", "su", "sudo", "doas"];

/// The file that `command` names: a path, or a name to look for in `PATH`.
pub(crate) fn find(command: &OsStr) -> Result<PathBuf> {
    let name = command.to_string_lossy();
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match fs::metadata(&path) {
            Err(e) => Err(Fault::setup(format_args!("cannot run {name}: {e}"))),
            Ok(m) if m.is_dir() => Err(Fault::setup(format_args!("cannot run {name}: it is a directory"))),
            Ok(_) if !is_executable(&path) => {
                Err(Fault::setup(format_args!("cannot run {name}: it is not executable (chmod +x)")))
            }
            Ok(_) => Ok(path),
        };
    }
    in_path(command).ok_or_else(|| Fault::setup(format_args!("there is no program '{name}' in PATH")))
}

fn in_path(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file() && is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    access(path, AccessFlags::X_OK).is_ok()
}

impl Program {
    /// Looks at the file of a program, and at the interpreter if it is a script.
    pub(crate) fn examine(command: &Path) -> Program {
        let mut program = Program::default();
        let mut path = command.to_owned();
        for _ in 0..MAX_INTERPRETERS {
            match interpreter(&path) {
                Some(next) => path = next,
                None => break,
            }
        }
        let name = path.display();
        let Some(elf) = Elf::read(&path) else {
            program.warnings.extend(match File::open(&path) {
                Ok(_) => Some(format!("{name} is neither a program for Linux nor a script with an interpreter here")),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    Some(format!("{} names the interpreter {name}, which is not here", command.display()))
                }
                // It may be run, but not looked at.
                Err(_) => None,
            });
            return program;
        };
        let foreign = match &elf.loader {
            _ if !elf.native => {
                Some("is for another kind of machine than the library, which it cannot load".to_owned())
            }
            None => Some("is linked statically, so that it cannot be given another library".to_owned()),
            Some(loader) if !loader.exists() => Some(format!(
                "asks for the loader {}, which is not here: it was built for another system or C library",
                loader.display()
            )),
            Some(_) => None,
        };
        program.warnings.extend(foreign.map(|why| format!("{name} {why}")));
        if let Some(why) = privilege(&path) {
            program.warnings.push(format!(
                "{name} {why}: the loader ignores LD_LIBRARY_PATH, and it will not get the library; run a copy without that"
            ));
        }
        program.also = bundled::names(&elf, command, &path);
        // A directory that is built in counts before ours.
        let origin = path.parent().unwrap_or(Path::new("/"));
        for dir in &elf.rpath {
            let dir =
                PathBuf::from(dir.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", &origin.display().to_string()));
            program.also.extend(bundled::those_in(&dir));
        }
        program
    }
}

/// The dynamic loader that comes before the program. Scripts and static programs have none.
pub(crate) fn loader(path: &Path) -> Option<PathBuf> {
    Elf::read(path).filter(|elf| elf.native)?.loader
}

/// What to know when `command` starts programs on other hosts with these arguments, or as another user.
pub(crate) fn launcher_hint(command: &Path, args: &[std::ffi::OsString]) -> Option<String> {
    let name = command.file_name()?.to_str()?;
    if OTHER_USERS.contains(&name) {
        return Some(format!(
            "{name} may take the library from the program: another user cannot read our links to it, and the environment \
             may not be passed on; '{name} ... srd run -- PROGRAM' works"
        ));
    }
    let remote = ["-H", "--host", "-host", "--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f"];
    let elsewhere = name == "srun" || args.iter().any(|a| remote.iter().any(|r| a == r));
    (LAUNCHERS.contains(&name) && elsewhere).then(|| {
        format!(
            "{name} may not pass the environment on to other hosts; '{name} ... srd run -- PROGRAM' works there, too"
        )
    })
}

/// The interpreter of a script, `env` looked through. A text that names none is for the shell.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    File::open(path).ok()?.take(MAX_SHEBANG as u64).read_to_end(&mut line).ok()?;
    let Some(line) = line.strip_prefix(b"#!") else {
        return (!line.contains(&0)).then(|| PathBuf::from("/bin/sh"));
    };
    let line = String::from_utf8_lossy(line.split(|&b| b == b'\n').next()?).into_owned();
    let mut words = line.split_whitespace();
    let first = PathBuf::from(words.next()?);
    if first.file_name()? != "env" {
        return Some(first);
    }
    let program = words.find(|w| !w.starts_with('-') && !w.contains('='))?;
    in_path(OsStr::new(program))
}

/// Why the loader distrusts the environment of this program, if it does.
fn privilege(path: &Path) -> Option<&'static str> {
    let meta = fs::metadata(path).ok()?;
    if meta.mode() & 0o4000 != 0 && meta.uid() != geteuid().as_raw() {
        return Some("is set-uid");
    }
    if meta.mode() & 0o2010 == 0o2010 && meta.gid() != getegid().as_raw() {
        return Some("is set-gid");
    }
    let capable = || xattr::get(path, "security.capability").ok().flatten().is_some();
    (!geteuid().is_root() && capable()).then_some("has file capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_lead_to_their_interpreter() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = dir.path().join("script");
        for (line, want) in [
            ("#!/bin/sh", Some("sh")),
            ("#! /bin/sh -e", Some("sh")),
            ("#!/usr/bin/env sh", Some("sh")),
            ("#!/usr/bin/env -S A=1 sh -e", Some("sh")),
            ("#!", None),
            ("echo", Some("sh")),
            ("\x7fELF\0", None),
        ] {
            fs::write(&script, format!("{line}\nexit\n")).expect("write");
            let found = interpreter(&script);
            assert_eq!(found.as_ref().and_then(|p| p.file_name()), want.map(OsStr::new), "{line}");
        }
    }

    #[test]
    fn launchers_on_other_hosts() {
        let args = |list: &[&str]| list.iter().map(Into::into).collect::<Vec<_>>();
        let mpirun = Path::new("/usr/bin/mpirun");
        assert!(launcher_hint(mpirun, &args(&["-H", "a,b", "prog"])).is_some());
        assert!(launcher_hint(mpirun, &args(&["-n", "2", "prog"])).is_none());
        assert!(launcher_hint(Path::new("/bin/ls"), &args(&["-H"])).is_none());
        let hint = launcher_hint(Path::new("/usr/sbin/runuser"), &args(&["-u", "nobody", "prog"])).expect("a hint");
        assert!(hint.contains("'runuser ... srd run -- PROGRAM'"), "{hint}");
    }
}
