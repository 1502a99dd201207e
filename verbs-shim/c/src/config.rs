//! temporary
use verbs_shim::{CardOptions, NicConfig};
pub(crate) fn devices() -> Result<Vec<NicConfig>, String> {
    let addr: std::net::IpAddr = std::env::var("SRD_ADDR")
        .ok()
        .map_or(Ok([127, 0, 0, 1].into()), |a| a.parse())
        .map_err(|e| format!("SRD_ADDR: {e}"))?;
    let mut card = CardOptions::default();
    if let Ok(p) = std::env::var("SRD_PROFILE") {
        card.profile = verbs_shim::Profile::generation(u32::from_str_radix(&p, 16).unwrap()).unwrap();
    }
    Ok(vec![NicConfig {
        name: "rdmap0s6".into(),
        addr: (addr, 0).into(),
        transport: srd_core::Config::default().check().map_err(|e| e.to_string())?,
        udp: srd_udp::UdpOptions::default(),
        card,
        faults: None,
        seed: None,
    }])
}
