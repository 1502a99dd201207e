//! Where a device is on the PCI bus: at the place of a real one.
//!
//! Programs look up the place that a device names in what they know of this machine, to find the cores that are near. MPICH and
//! Intel MPI take for granted that something is there, and die if not. So a device is where the network interface is that
//! carries its packets.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::options::interface_of;

/// What the kernel knows of this machine.
const SYS: &str = "/sys";
/// The first two digits of the class of network interfaces.
const NETWORK: &str = "0x02";
/// Bridges between buses, which are no devices for programs.
const BRIDGE: &str = "0x0604";

/// The PCI address for the device number `index` at `ip`.
pub(super) fn address(ip: Option<IpAddr>, index: usize) -> String {
    let interface = ip.and_then(interface_of);
    // Where there is no such bus, nobody looks there.
    find(Path::new(SYS), interface.as_deref()).unwrap_or_else(|| format!("0000:{index:02x}:06.0"))
}

/// That of the interface; where it has none, as in containers, that of the first network interface, or of anything.
fn find(sys: &Path, interface: Option<&str>) -> Option<String> {
    let all = sys.join("bus/pci/devices");
    let own = || {
        let path = fs::canonicalize(sys.join("class/net").join(interface?).join("device")).ok()?;
        // The device itself may be a virtual one on it.
        let mut names = path.iter().rev().filter_map(|name| name.to_str());
        names.find(|name| is_address(name) && all.join(name).exists()).map(str::to_owned)
    };
    own().or_else(|| {
        let names = fs::read_dir(&all).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let class = |name: &String| fs::read_to_string(all.join(name).join("class")).unwrap_or_default();
        let rank = |name: &String| (!class(name).starts_with(NETWORK), name.clone());
        names.filter(|name| is_address(name) && !class(name).starts_with(BRIDGE)).min_by_key(rank)
    })
}

/// Whether it is an address as libfabric reads them: `0000:00:06.0`.
fn is_address(name: &str) -> bool {
    let pattern = b"xxxx:xx:xx.x";
    let fits = |(c, p): (u8, &u8)| if *p == b'x' { c.is_ascii_hexdigit() } else { c == *p };
    name.len() == pattern.len() && name.bytes().zip(pattern).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Devices by address and class, and what is the device of `eth0`.
    fn machine(devices: &[(&str, &str)], eth0: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let all = dir.path().join("bus/pci/devices");
        fs::create_dir_all(&all).unwrap();
        for (address, class) in devices {
            let device = dir.path().join("devices/pci0000:00").join(address);
            fs::create_dir_all(device.join("virtio0")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
            symlink(&device, all.join(address)).unwrap();
        }
        let net = dir.path().join("class/net/eth0");
        fs::create_dir_all(&net).unwrap();
        symlink(dir.path().join("devices").join(eth0), net.join("device")).unwrap();
        dir
    }

    #[test]
    fn a_device_is_where_a_real_one_is() {
        let host = ("0000:00:00.0", "0x060000");
        let [first, second] = [("0000:00:03.0", "0x020000"), ("0001:80:1f.7", "0x028000")];
        let at_second = machine(&[host, first, second], "pci0000:00/0001:80:1f.7/virtio0");
        for (interface, want) in [(Some("eth0"), second.0), (Some("veth7"), first.0), (None, first.0)] {
            assert_eq!(find(at_second.path(), interface).as_deref(), Some(want), "{interface:?}");
        }
        // What is not on the bus is not asked for.
        let long = "10000:00:01.0";
        let other = machine(&[(long, "0x020000"), ("0000:00:01.0", "0x060400"), host], "pci0000:00/10000:00:01.0");
        assert_eq!(find(other.path(), Some("eth0")).as_deref(), Some(host.0));
        assert_eq!(find(machine(&[], "none").path(), Some("eth0")), None);
        assert_eq!(find(Path::new("/nowhere"), None), None);
    }
}
