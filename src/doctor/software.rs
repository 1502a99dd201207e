//! Libraries: which ones a program would get, and what keeps it from them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use verbs_shim::Options;

use super::{Finding, tool};
use crate::run::program::{self, Program};
use crate::run::{in_front, library};
use crate::units::plural;

pub(super) fn check(options: &Options, command: &[OsString]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let found = library::find(options).and_then(|path| Ok((library::links(options, &path, &BTreeSet::new())?, path)));
    match found {
        Ok((links, path)) => {
            findings.push(Finding::ok(
                "library",
                format!("{} as libibverbs and libefa, in {}", path.display(), links.display()),
            ));
            if let Some(name) = command.first() {
                findings.extend(program(name, &links));
            }
        }
        Err(fault) => {
            findings.push(Finding::fail("library", fault.to_string(), "without it, no program sees a device"))
        }
    }
    let runtime = options.runtime_dir().unwrap_or_default();
    // The library sets it, too, for the program and what that starts.
    if let Some(dir) = std::env::var_os("SYSFS_PATH").filter(|dir| !Path::new(dir).starts_with(&runtime)) {
        findings.push(Finding::warn(
            "sysfs",
            format!("SYSFS_PATH is {}", dir.to_string_lossy()),
            "unset it: libfabric looks there for the device, instead of where the library tells it to",
        ));
    }
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().count();
    findings.push(match devices {
        0 => Finding::ok("devices", "no RDMA hardware here that the card would hide"),
        n => Finding::warn(
            "devices",
            plural(n, "RDMA device of the kernel", "RDMA devices of the kernel"),
            "nothing, unless a program shall use both: under 'srd run' programs do not see the kernel's",
        ),
    });
    findings
}

fn program(name: &OsString, links: &Path) -> Vec<Finding> {
    let path = match program::find(name) {
        Ok(path) => path,
        Err(fault) => return vec![Finding::fail("program", fault.to_string(), "check its name and PATH")],
    };
    let Program { warnings, also } = Program::examine(&path);
    let doubt = |text| Finding::fail("program", text, "without that, it cannot be run over the software card");
    let mut findings: Vec<Finding> = warnings.into_iter().map(doubt).collect();
    if !also.is_empty() {
        let names: Vec<_> = also.into_iter().collect();
        findings.push(Finding::ok("program", format!("'srd run' replaces these, too: {}", names.join(", "))));
    }
    if findings.is_empty() {
        findings.push(loaded(&path, links));
    }
    findings
}

/// What the loader says that it would load. The program is not run.
fn loaded(path: &Path, links: &Path) -> Finding {
    let Some(loader) = program::loader(path) else {
        return Finding::ok(
            "program",
            format!("{} is a script; its interpreter can be given the library", path.display()),
        );
    };
    // Asked by a variable, loaders that do not know it would run the program.
    let mut command = Command::new(loader);
    command.arg("--list").arg(path).env("LD_LIBRARY_PATH", in_front("LD_LIBRARY_PATH", links.as_os_str()));
    let Some(listing) = tool::output(&mut command) else {
        let found = format!("the loader of {} does not tell what it would load", path.display());
        return Finding::warn("program", found, "'srd run' may work all the same: try it");
    };
    // What is loaded in advance stands there by its path.
    let is_verbs = |line: &&str| {
        let file = line.split_whitespace().next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        ["libibverbs", "libefa"].iter().any(|name| file.starts_with(name))
    };
    let lines: Vec<_> = listing.lines().filter(is_verbs).map(str::trim).collect();
    let missing: Vec<_> = listing.lines().filter(|l| l.contains("not found")).map(str::trim).collect();
    if !missing.is_empty() {
        let remedy = "install what is missing; a version that is not found needs a newer library";
        return Finding::fail("program", missing.join("; "), remedy);
    }
    // Under 'srd run', that has its own directory of links beside this one.
    let ours = links.parent().unwrap_or(links).to_string_lossy();
    match lines.iter().find(|l| !l.contains(&*ours)) {
        Some(other) => {
            let advance = std::env::var_os("LD_PRELOAD").is_some() && other.starts_with('/');
            let remedy = if advance { "take it out of LD_PRELOAD" } else { "srd run --also NAME" };
            Finding::fail("program", format!("it would get another library: {other}"), remedy)
        }
        None if lines.is_empty() => Finding::ok(
            "program",
            format!("{} loads no verbs when it starts; modules may later, and get ours", path.display()),
        ),
        None => Finding::ok("program", format!("{} gets the library", path.display())),
    }
}
