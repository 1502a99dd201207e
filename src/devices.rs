//! `srd devices`: what a program would see. Opens each device for a moment.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use verbs_shim::options::CAPS;
use verbs_shim::{Nic, NicConfig, Options, Profile};

use crate::exit::{Exit, Fault, Result};
use crate::options::DeviceArgs;
use crate::units::plural;
use crate::{render, report};

/// Options of `srd devices`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct DevicesReport {
    ok: bool,
    devices: Vec<DeviceReport>,
}

/// A device. The names are an interface.
#[derive(Serialize)]
struct DeviceReport {
    /// Its name.
    name: String,
    /// Its address, with the port that it happened to get.
    address: String,
    /// Whether it gets the same port each time.
    port_is_fixed: bool,
    /// Its GID, with the same port.
    gid: String,
    /// Processing units, at as many ports.
    pus: u16,
    /// The EFA generation.
    profile: String,
    /// PCI vendor.
    vendor_id: u32,
    /// PCI device id.
    part_id: u32,
    /// Firmware version.
    fw_ver: String,
    /// Capabilities.
    caps: Vec<&'static str>,
    /// Nominal speed of the port.
    gbps: u32,
    /// Paths for each peer.
    paths: u16,
    limits: Limits,
}

/// Limits, under the names that the verbs have for them.
#[derive(Serialize)]
struct Limits {
    max_msg_sz: u32,
    max_rdma_size: u32,
    max_sq_wr: u32,
    max_rq_wr: u32,
    max_sq_sge: u16,
    max_rq_sge: u16,
    inline_buf_size: u32,
    max_cqe: u32,
    max_qp: u32,
    max_cq: u32,
    max_mr: u32,
    max_mr_size: u64,
    max_ah: u32,
    max_pd: u32,
}

/// Amazon's.
const VENDOR_ID: u32 = 0x1d0f;

/// What to do where a host's datagrams to itself do not arrive.
pub(crate) const LOOPBACK: &str =
    "bring the loopback interface up (ip link set lo up), or let a firewall pass UDP there";
/// A datagram to ourselves that is not there by then has been dropped.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether datagrams from an address of this host arrive there.
///
/// # Errors
/// There is no socket to try it with.
pub(crate) fn reaches_itself(ip: IpAddr) -> io::Result<bool> {
    let (from, to) = (UdpSocket::bind((ip, 0))?, UdpSocket::bind((ip, 0))?);
    to.set_read_timeout(Some(PATIENCE))?;
    let to_itself = to.local_addr()?;
    let exchange = || from.send_to(b"srd", to_itself).and_then(|_| to.recv(&mut [0; 8]));
    Ok(exchange().is_ok_and(|n| n == 3))
}

/// What to say if datagrams from an address of this host do not arrive there; nothing, too, if it cannot be tried.
pub(crate) fn silence(ip: IpAddr) -> Option<String> {
    let silent = matches!(reaches_itself(ip), Ok(false));
    silent.then(|| format!("UDP from {ip} to itself does not arrive; {LOOPBACK}"))
}

/// Tells if processes of this host would not reach each other: of one address only, to be quick.
pub(crate) fn warn_of_silence(devices: &[NicConfig]) {
    let ips: BTreeSet<IpAddr> = devices.iter().map(|device| device.addr.ip()).collect();
    if let Some(silence) = ips.into_iter().find_map(silence) {
        render::note(&format!("srd: warning: {silence}"));
    }
}

/// Opens a device as a program would, but for its counters: nothing will be counted.
pub(crate) fn open(config: NicConfig) -> Result<Nic> {
    let name = config.name.clone();
    Nic::open(NicConfig { counters: None, ..config }, Box::new(()))
        .map_err(|e| Fault::new(Exit::Setup, anyhow::Error::new(e).context(format!("device {name} cannot be opened"))))
}

impl DeviceReport {
    fn new(config: NicConfig) -> Result<DeviceReport> {
        let (name, fixed, paths) = (config.name.clone(), config.addr.port() != 0, config.transport.paths);
        let nic = open(config)?;
        let profile = *nic.profile();
        Ok(DeviceReport {
            name,
            address: nic.gid().addr().map_or_else(String::new, |addr| addr.to_string()),
            port_is_fixed: fixed,
            gid: nic.gid().to_string(),
            pus: nic.gid().units(),
            profile: format!("{:x}", profile.part_id),
            vendor_id: VENDOR_ID,
            part_id: profile.part_id,
            fw_ver: profile.fw_ver.map(|n| n.to_string()).join("."),
            caps: CAPS.iter().filter(|cap| profile.has(cap.1)).map(|cap| cap.0).collect(),
            gbps: profile.gbps,
            paths,
            limits: Limits::from(&profile),
        })
    }
}

impl From<&Profile> for Limits {
    fn from(p: &Profile) -> Limits {
        Limits {
            max_msg_sz: p.max_msg,
            max_rdma_size: p.max_rdma,
            max_sq_wr: p.max_sq_wr,
            max_rq_wr: p.max_rq_wr,
            max_sq_sge: p.max_sq_sge,
            max_rq_sge: p.max_rq_sge,
            inline_buf_size: p.max_inline,
            max_cqe: p.max_cqe,
            max_qp: p.max_qp,
            max_cq: p.max_cq,
            max_mr: p.max_mr,
            max_mr_size: p.max_mr_size,
            max_ah: p.max_ah,
            max_pd: p.max_pd,
        }
    }
}

pub(crate) fn run(args: &DevicesArgs) -> Result<Exit> {
    // So no place for them is looked for.
    let options = Options { counters: false, ..args.device.options()? };
    let configs = options.devices().map_err(|e| Fault::new(Exit::Setup, e))?;
    warn_of_silence(&configs);
    let devices: Vec<DeviceReport> = configs.into_iter().map(DeviceReport::new).collect::<Result<_>>()?;
    if args.json {
        render::json(&DevicesReport { ok: true, devices })?;
    } else {
        render::text(&text(&devices))?;
    }
    Ok(Exit::Ok)
}

fn text(devices: &[DeviceReport]) -> String {
    let mut table = report::table();
    table.set_header(["device", "profile", "address", "GID"]);
    for d in devices {
        let (ip, port) = d.address.rsplit_once(':').unwrap_or((&d.address, ""));
        let ports = match (d.port_is_fixed, port.parse::<u16>()) {
            (true, Ok(first)) if d.pus > 1 => format!("ports {first} to {}", first + d.pus - 1),
            (true, _) => format!("port {port}"),
            (false, _) if d.pus > 1 => format!("any {} ports", d.pus),
            (false, _) => "port any".to_owned(),
        };
        table.add_row([d.name.clone(), d.profile.clone(), format!("{ip}, UDP {ports}"), d.gid.clone()]);
    }
    let Some(first) = devices.first() else { return table.to_string() };
    let caps = if first.caps.is_empty() { "none".to_owned() } else { first.caps.join(", ") };
    let Limits { max_msg_sz, max_rdma_size, max_sq_wr, max_rq_wr, max_qp, max_cq, max_mr, max_ah, .. } = first.limits;
    let units = if first.pus > 1 { format!(", {} processing units", first.pus) } else { String::new() };
    format!(
        "{table}\n\neach: firmware {}, {} Gbit/s by name, {} for each peer{units}\n  capabilities: {caps}\n  \
         sends to {max_msg_sz} B, RDMA to {max_rdma_size} B, {max_sq_wr} sends and {max_rq_wr} receives per queue pair\n  \
         {max_qp} queue pairs, {max_cq} completion queues, {max_mr} memory regions, {max_ah} address handles",
        first.fw_ver,
        first.gbps,
        plural(first.paths.into(), "path", "paths")
    )
}
