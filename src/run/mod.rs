//! `srd run`: runs an unmodified program over the software card.
//!
//! Prepares the environment and becomes the program: signals, exit code and process number are the program's own.

mod bundled;
mod device_files;
mod elf;
pub(crate) mod library;
pub(crate) mod program;
mod standin;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use nix::unistd::execvpe;
use verbs_shim::Options;

use crate::exit::{Exit, Fault, Result};
use crate::options::DeviceArgs;
use crate::{devices, render};
use program::Program;

/// Options of `srd run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Another name of a libibverbs or libefa that the program brings along: it gets the library under that name, too
    #[arg(long, value_name = "NAME", value_parser = library_name)]
    also: Vec<String>,
    /// Show the program the files of a device, for UCX and others that look for these: '/dev/infiniband' and
    /// '/sys/class/infiniband', in a mount namespace of its own
    #[arg(long, conflicts_with = "print_env")]
    device_files: bool,
    /// Print the variables that would be set, one NAME=VALUE in each line, and run nothing
    #[arg(long)]
    print_env: bool,
    /// The program and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "print_env")]
    command: Vec<OsString>,
}

fn library_name(text: &str) -> std::result::Result<String, String> {
    let separators = ['/', ':', ' '];
    if text.contains(".so") && !text.contains(separators) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is no name of a library, such as libibverbs-1a2b3c4d.so.1"))
    }
}

/// What to do where namespaces are forbidden.
const NO_FILES: &str = "cannot show the program the files of a device (--device-files), which takes a mount namespace; where \
    containers forbid that, UCX has enough with 'mkdir -p /dev/infiniband && ln -s /dev/null /dev/infiniband/uverbs0'";

/// Variables to set.
type Variables = Vec<(String, OsString)>;

pub(crate) fn run(args: &RunArgs) -> Result<Exit> {
    let options = args.device.options()?;
    let library = library::find(&options)?;
    options.runtime_dir().map_err(|e| Fault::new(Exit::Setup, e))?;
    // A device that cannot be opened is told at once, and not by the program in its own way.
    let devices = options.devices().map_err(|e| Fault::new(Exit::Setup, e))?;
    devices::warn_of_silence(&devices);
    devices.iter().cloned().try_for_each(|device| devices::open(device).map(drop))?;
    let Some((command, rest)) = args.command.split_first() else {
        return print(&variables(args, &options, &library, Program::default().also)?);
    };
    let path = program::find(command)?;
    let program = Program::examine(&path);
    let hint = program::launcher_hint(&path, rest);
    // What we load in advance comes first.
    let rival = if program.also.is_empty() && args.also.is_empty() { bundled::in_advance(&library) } else { None };
    for warning in program.warnings.iter().chain(&hint).chain(&rival) {
        render::note(&format!("srd: warning: {warning}"));
    }
    let variables = variables(args, &options, &library, program.also)?;
    if args.print_env {
        return print(&variables);
    }
    if args.device_files {
        device_files::show(&devices).map_err(|e| Fault::new(Exit::Setup, anyhow::Error::new(e).context(NO_FILES)))?;
    }
    tracing::info!("{} gets {} as libibverbs and libefa", path.display(), library.display());
    variables.iter().for_each(|(name, value)| tracing::debug!("{name}={}", value.to_string_lossy()));
    let Err(error) = exec(&path, &args.command, variables);
    Err(Fault::new(Exit::Setup, anyhow::Error::new(error).context(format!("cannot run {}", path.display()))))
}

/// Becomes the program at `path`, with these arguments from its name on. What processes inherit it gets as we got it.
fn exec(path: &Path, args: &[OsString], variables: Variables) -> io::Result<Infallible> {
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value)));
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let args: Vec<CString> = args.iter().map(|arg| text(arg.as_bytes())).collect::<io::Result<_>>()?;
    let environment = environment.iter().map(|(name, value)| text(&[name.as_bytes(), value.as_bytes()].join(&b'=')));
    let environment: Vec<CString> = environment.collect::<io::Result<_>>()?;
    let path = text(path.as_os_str().as_bytes())?;
    verbs_shim::pipe::restore();
    Ok(execvpe(&path, &args, &environment)?)
}

fn variables(args: &RunArgs, options: &Options, library: &Path, mut also: BTreeSet<String>) -> Result<Variables> {
    also.extend(args.also.iter().cloned());
    let links = library::links(options, library, &also)?;
    let mut all: Variables = args.device.variables().into_iter().map(|(name, value)| (name, value.into())).collect();
    if !options.fault.is_empty() && options.seed_is_drawn {
        let seed = options.seed;
        render::note(&format!("srd: faults are injected; --seed {seed} repeats them"));
        all.push(("SRD_SEED".to_owned(), seed.to_string().into()));
    }
    all.push(("LD_LIBRARY_PATH".to_owned(), in_front("LD_LIBRARY_PATH", links.as_os_str())));
    if !also.is_empty() {
        let paths: Vec<OsString> = library::preload(&links, &also).into_iter().map(PathBuf::into_os_string).collect();
        all.push(("LD_PRELOAD".to_owned(), in_front("LD_PRELOAD", &paths.join(OsStr::new(":")))));
    }
    Ok(all)
}

/// The value of a variable that is a list, with `first` in front.
pub(crate) fn in_front(name: &str, first: &OsStr) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty() && rest != first) {
        list.push(":");
        list.push(rest);
    }
    list
}

/// One in each line, as files of variables have them.
fn print(variables: &Variables) -> Result<Exit> {
    if let Some((name, value)) = variables.iter().find(|(_, value)| value.as_bytes().contains(&b'\n')) {
        return Err(Fault::setup(format_args!(
            "{name}={value:?} has an end of line in it, and cannot be printed in one"
        )));
    }
    let lines: Vec<_> = variables.iter().map(|(name, value)| [name.as_bytes(), value.as_bytes()].join(&b'=')).collect();
    render::bytes(&lines.join(&b'\n'))?;
    Ok(Exit::Ok)
}
