//! `srd stat`: the counters of running processes, under EFA's names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use verbs_shim::Options;
use verbs_shim::counters::{Device, Record, Registry, Values, write_counters, write_tree};

use crate::exit::{Exit, Fault, Result};
use crate::options::DeviceArgs;
use crate::units::{bytes, thousands};
use crate::{interrupt, render, report};

/// Options of `srd stat`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatArgs {
    /// Show all counters of one process or one device [default: a summary of all]
    #[arg(value_name = "PID|DEVICE")]
    which: Option<String>,
    /// Again and again, every second or so many, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = crate::units::seconds)]
    watch: Option<srd::Span>,
    /// Write a tree of files as the kernel has it in /sys, for exporters, summed over all processes; with --watch, keep it up
    /// to date
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,
    /// Print one JSON object, with --watch one in each line
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory that the programs publish in [default: that of 'srd run'] [SRD_RUNTIME_DIR]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct StatReport {
    ok: bool,
    devices: Vec<DeviceReport>,
}

/// A device. The names are an interface.
#[derive(Serialize)]
struct DeviceReport {
    name: String,
    part_id: u32,
    /// Sums over all processes since the host started, those included that are no more.
    total: Counters,
    processes: Vec<ProcessReport>,
}

#[derive(Serialize)]
struct ProcessReport {
    pid: u32,
    command: String,
    address: Option<String>,
    counters: Counters,
}

/// Counters by name.
type Counters = BTreeMap<&'static str, u64>;

impl From<&Device> for DeviceReport {
    fn from(device: &Device) -> DeviceReport {
        let process = |r: &Record| ProcessReport {
            pid: r.pid,
            command: r.command.clone(),
            address: r.identity.addr.map(|addr| addr.to_string()),
            counters: r.values.named().collect(),
        };
        DeviceReport {
            name: device.identity.device.clone(),
            part_id: device.identity.part_id,
            total: device.total.named().collect(),
            processes: device.processes.iter().map(process).collect(),
        }
    }
}

pub(crate) fn run(args: &StatArgs) -> Result<Exit> {
    let mut options = DeviceArgs::default().options()?;
    options.runtime_dir = args.runtime_dir.clone().or(options.runtime_dir);
    let Some(period) = args.watch else { return once(args, &options).map(|_| Exit::Ok) };
    interrupt::install()?;
    let period = Duration::from(period);
    let mut next = Instant::now();
    while !interrupt::requested() {
        let now = Instant::now();
        if next <= now {
            // From now on: what was missed while we were stopped is not made up for.
            next = now + period;
            if !once(args, &options)? {
                return Ok(Exit::Ok);
            }
        }
        // Signals are looked for often enough that nobody waits.
        std::thread::sleep(next.saturating_duration_since(Instant::now()).min(Duration::from_millis(50)));
    }
    Ok(Exit::Interrupted)
}

/// Looks once. Whether there is still somebody who reads what it prints.
fn once(args: &StatArgs, options: &Options) -> Result<bool> {
    // The usual one is there once a program has used a device.
    if let Some(dir) = &options.runtime_dir {
        std::fs::read_dir(dir).map_err(|e| {
            let what = format!("cannot read the runtime directory {}", dir.display());
            Fault::new(Exit::Setup, anyhow::Error::new(e).context(what))
        })?;
    }
    let dirs = options.runtime_dirs();
    let all = Registry::new(&dirs).devices();
    let devices = match &args.which {
        None => all.clone(),
        Some(which) => select(all.clone(), which)?,
    };
    if let Some(dir) = &args.sysfs {
        for (index, device) in all.iter().enumerate() {
            let tree = write_tree(dir, index, &device.identity);
            tree.and_then(|()| write_counters(dir, &device.identity.device, &device.total)).map_err(|e| {
                Fault::new(Exit::Setup, anyhow::Error::new(e).context(format!("cannot write below {}", dir.display())))
            })?;
        }
    }
    let text = match (args.json, args.watch) {
        (true, None) => return render::json(&report(&devices)).map(|()| true),
        (true, Some(_)) => render::json_line(&report(&devices))?,
        (false, _) if args.sysfs.is_some() => return Ok(true),
        (false, _) if args.which.is_some() => details(&devices),
        (false, _) if devices.is_empty() => nothing(&dirs),
        (false, _) => summary(&devices),
    };
    render::is_read(&text)
}

fn report(devices: &[Device]) -> StatReport {
    StatReport { ok: true, devices: devices.iter().map(DeviceReport::from).collect() }
}

/// The devices that a process uses, with it alone; or the device of this name.
fn select(mut devices: Vec<Device>, which: &str) -> Result<Vec<Device>> {
    if let Ok(pid) = which.parse::<u32>() {
        devices.iter_mut().for_each(|d| d.processes.retain(|r| r.pid == pid));
        devices.retain(|d| !d.processes.is_empty());
    } else {
        devices.retain(|d| d.identity.device == which);
    }
    if devices.is_empty() {
        return Err(Fault::setup(format_args!(
            "'{which}' is no process that uses a device, and no device that was used; 'srd stat' lists them"
        )));
    }
    Ok(devices)
}

fn nothing(dirs: &[PathBuf]) -> String {
    let names: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    let seen = if names.is_empty() { String::new() } else { format!(" (seen in {})", names.join(", ")) };
    format!("no device has been used since this host started{seen}")
}

fn summary(devices: &[Device]) -> String {
    let mut table = report::table();
    table.set_header([
        "device", "process", "address", "sent", "received", "sends", "receives", "RDMA", "failed", "again",
    ]);
    for device in devices {
        for r in &device.processes {
            let addr = r.identity.addr.map_or_else(String::new, |addr| addr.to_string());
            table.add_row(row(&device.identity.device, &format!("{} {}", r.pid, r.command), &addr, &r.values));
        }
        table.add_row(row(&device.identity.device, "all, ever", "", &device.total));
    }
    table.to_string()
}

fn row(device: &str, process: &str, addr: &str, values: &Values) -> [String; 10] {
    let counters: Counters = values.named().collect();
    let sum = |names: &[&str]| names.iter().map(|n| counters.get(n).copied().unwrap_or(0)).sum::<u64>();
    [
        device.to_owned(),
        process.to_owned(),
        addr.to_owned(),
        bytes(sum(&["tx_bytes"])),
        bytes(sum(&["rx_bytes"])),
        thousands(sum(&["send_wrs"])),
        thousands(sum(&["recv_wrs"])),
        thousands(sum(&["rdma_read_wrs", "rdma_write_wrs"])),
        thousands(sum(&["rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"])),
        thousands(sum(&["retrans_pkts"])),
    ]
}

fn details(devices: &[Device]) -> String {
    let mut table = report::table();
    let mut head = vec!["counter".to_owned()];
    let mut columns = Vec::new();
    for device in devices {
        for r in &device.processes {
            head.push(format!("{} {} {}", device.identity.device, r.pid, r.command));
            columns.push(r.values);
        }
        head.push(format!("{} all, ever", device.identity.device));
        columns.push(device.total);
    }
    table.set_header(head);
    for (k, (name, _)) in Values::default().named().enumerate() {
        let numbers = columns.iter().map(|v| v.named().nth(k).map_or_else(String::new, |(_, n)| thousands(n)));
        table.add_row(std::iter::once(name.to_owned()).chain(numbers));
    }
    table.to_string()
}
