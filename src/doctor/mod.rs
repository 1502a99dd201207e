//! `srd doctor`: looks at what the software card needs of this host, and says what to do about what is wrong.
//!
//! Changes nothing, sends nothing beyond this host, and takes two seconds at most.

mod af_xdp;
mod host;
mod network;
mod software;
mod tool;

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;
use verbs_shim::Options;
use verbs_shim::options::strange_variables;

use crate::exit::{Exit, Result};
use crate::options::DeviceArgs;
use crate::render;
use crate::units::plural;

/// Options of `srd doctor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// A program to look at, too: whether it would get the library. It is not run
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(Serialize)]
struct DoctorReport {
    /// Nothing has failed.
    ok: bool,
    findings: Vec<Finding>,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// It works, but worse than it could, or not for all programs.
    Warn,
    /// It does not work.
    Fail,
}

/// What was found. The names are an interface.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    /// What was looked at.
    check: &'static str,
    state: State,
    found: String,
    /// What to do about it.
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, state: State::Ok, found: found.into(), remedy: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { check, state: State::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { check, state: State::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<Exit> {
    let mut findings = Vec::new();
    let options = match args.device.parse() {
        Ok(options) => {
            findings.push(Finding::ok("options", "make sense"));
            options
        }
        Err(fault) => {
            let remedy = "correct it ('srd run --help' lists the options); what follows is without any options";
            findings.push(Finding::fail("options", fault.to_string(), remedy));
            Options::default()
        }
    };
    let unset = "unset it, or correct its name; docs/options.md has them all";
    findings.extend(strange_variables().into_iter().map(|text| Finding::warn("options", text, unset)));
    findings.extend(software::check(&options, &args.command));
    findings.extend(network::check(&options));
    findings.extend(host::check(&options));

    let ok = findings.iter().all(|f| f.state != State::Fail);
    if args.json {
        render::json(&DoctorReport { ok, findings })?;
    } else {
        render::text(&text(&findings, ok))?;
    }
    Ok(if ok { Exit::Ok } else { Exit::Failed })
}

fn text(findings: &[Finding], ok: bool) -> String {
    let mut out = String::new();
    for Finding { check, state, found, remedy } in findings {
        let mark = match state {
            State::Ok => "ok  ",
            State::Warn => "warn",
            State::Fail => "FAIL",
        };
        out += &format!("{mark}  {check}: {found}\n");
        if let Some(remedy) = remedy {
            out += &format!("      -> {remedy}\n");
        }
    }
    let warnings = findings.iter().filter(|f| f.state == State::Warn).count();
    out += &match (ok, warnings) {
        (false, _) => "verdict: it does not work here yet".to_owned(),
        (true, 0) => "verdict: ok".to_owned(),
        (true, n) => format!("verdict: ok, with {}", plural(n, "warning", "warnings")),
    };
    out
}
