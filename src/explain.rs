//! `srd explain`: what a completion status means, what usually causes it, and what to look at.

use clap::Args;
use serde::Serialize;
use verbs_shim::{Status, status};

use crate::exit::{Exit, Fault, Result};
use crate::{render, report};

/// Options of `srd explain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExplainArgs {
    /// Number (vendor_err or ibv_wc_status), name, ibv_wc_status name or libfabric error: 10, 0xa, rnr,
    /// IBV_WC_RNR_RETRY_EXC_ERR, FI_ENORX
    /// [default: all]
    #[arg(value_name = "STATUS")]
    status: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct ExplainReport {
    ok: bool,
    statuses: Vec<StatusReport>,
}

/// A status. The names are an interface.
#[derive(Serialize)]
struct StatusReport {
    /// `vendor_err`.
    status: u8,
    /// The device's name.
    name: &'static str,
    /// `enum ibv_wc_status`, by number.
    wc_status: u32,
    /// The same by name.
    wc_name: &'static str,
    /// libfabric's error.
    libfabric: &'static str,
    meaning: &'static str,
    causes: &'static [&'static str],
    remedies: &'static [&'static str],
}

impl From<Status> for StatusReport {
    fn from(status: Status) -> StatusReport {
        let info = status.info();
        StatusReport {
            status: status.code(),
            name: info.name,
            wc_status: info.wc_status,
            wc_name: info.wc_name,
            libfabric: info.libfabric,
            meaning: info.meaning,
            causes: info.causes,
            remedies: info.remedies,
        }
    }
}

pub(crate) fn run(args: &ExplainArgs) -> Result<Exit> {
    let found = match &args.status {
        None => Status::all().collect(),
        Some(text) => status::meanings(text),
    };
    if found.is_empty() {
        let text = args.status.as_deref().unwrap_or_default();
        return Err(Fault::usage(format_args!("'{text}' is no completion status of EFA; 'srd explain' lists them")));
    }
    let statuses: Vec<StatusReport> = found.into_iter().map(StatusReport::from).collect();
    if args.json {
        render::json(&ExplainReport { ok: true, statuses })?;
    } else if args.status.is_none() {
        render::text(&overview(&statuses))?;
    } else {
        render::text(&statuses.iter().map(details).collect::<Vec<_>>().join("\n\n"))?;
    }
    Ok(Exit::Ok)
}

fn overview(statuses: &[StatusReport]) -> String {
    let mut table = report::table();
    table.set_header(["status", "name", "verbs", "libfabric"]);
    for s in statuses {
        table.add_row([&s.status.to_string(), s.name, s.wc_name, s.libfabric]);
    }
    format!("{table}\n\n'srd explain STATUS' says more.")
}

fn details(s: &StatusReport) -> String {
    let mut text = format!("{} (vendor_err {}, verbs status {})\n{}\n", s.name, s.status, s.wc_status, s.meaning);
    for (title, lines) in [("usual causes", s.causes), ("what to do", s.remedies)] {
        if !lines.is_empty() {
            text += &format!("\n{title}:\n");
            lines.iter().for_each(|line| text += &format!("  - {line}\n"));
        }
    }
    text + &format!("\nprograms see it as {} ({}), libfabric as {}", s.wc_name, s.wc_status, s.libfabric)
}
