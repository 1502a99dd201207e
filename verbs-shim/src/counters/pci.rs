//! Where a device is on the PCI bus: at the place of a real one.
//!
//! Programs look up the place that a device names in what they know of this machine, to find the cores that are near. MPICH and
//! Intel MPI take for granted that something is there, and die if not. So a device is where the network interface is that
//! carries its packets. Both also take two devices in one place for one, so only the first is there.

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

/// The PCI address for the device number `index` at `ip`, if possible one that no other device has.
pub(super) fn address(ip: Option<IpAddr>, index: usize, is_taken: impl Fn(&str) -> bool) -> String {
    let interface = ip.and_then(interface_of);
    let places = places(Path::new(SYS), interface.as_deref());
    let free = places.iter().find(|place| !is_taken(place)).or(places.first());
    // Where there is no such bus, nobody looks there.
    free.cloned().unwrap_or_else(|| format!("0000:{index:02x}:06.0"))
}

/// The addresses of this machine: first that of the interface, if it has one, then those of network interfaces, then all others.
fn places(sys: &Path, interface: Option<&str>) -> Vec<String> {
    let all = sys.join("bus/pci/devices");
    let path = interface.and_then(|name| fs::canonicalize(sys.join("class/net").join(name).join("device")).ok());
    // The device itself may be a virtual one on it.
    let mut parts = path.iter().flat_map(|path| path.iter().rev()).filter_map(|name| name.to_str());
    let own = parts.find(|name| is_address(name) && all.join(name).exists()).map(str::to_owned);
    let names = fs::read_dir(&all).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_address(name));
    let class = |name: &String| fs::read_to_string(all.join(name).join("class")).unwrap_or_default();
    let mut places: Vec<String> = names.filter(|name| !class(name).starts_with(BRIDGE)).collect();
    places.sort_by_cached_key(|name| (own.as_ref() != Some(name), !class(name).starts_with(NETWORK), name.clone()));
    places
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
        for (interface, want) in [
            (Some("eth0"), [second, first, host]),
            (Some("veth7"), [first, second, host]),
            (None, [first, second, host]),
        ] {
            assert_eq!(places(at_second.path(), interface), want.map(|(address, _)| address), "{interface:?}");
        }
        // What is not on the bus is not asked for.
        let long = "10000:00:01.0";
        let other = machine(&[(long, "0x020000"), ("0000:00:01.0", "0x060400"), host], "pci0000:00/10000:00:01.0");
        assert_eq!(places(other.path(), Some("eth0")), [host.0]);
        assert!(places(machine(&[], "none").path(), Some("eth0")).is_empty());
        assert!(places(Path::new("/nowhere"), None).is_empty());
    }
}
