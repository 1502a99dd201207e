//! Finds completion statuses by what people call them.

use srd_core::card::Status;

/// The statuses that `text` may mean: a number (`vendor_err`), the device's name with or without the part that says where it
/// arose (`RNR`, `REMOTE_ERROR_RNR`), the name that verbs gives (`IBV_WC_RNR_RETRY_EXC_ERR`, with or without `IBV_WC_`), or
/// libfabric's (`FI_ENORX`). Case does not matter, and hyphens stand for underscores. Several statuses share names of verbs
/// and libfabric.
pub fn find(text: &str) -> Vec<Status> {
    let wanted = text.trim().to_ascii_uppercase().replace('-', "_");
    if let Ok(code) = wanted.parse::<u8>() {
        return Status::from_code(code).into_iter().collect();
    }
    let named = |status: &Status| {
        let info = status.info();
        let bare = |name: &'static str, prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest == wanted);
        wanted == info.name
            || bare(info.name, "LOCAL_ERROR_")
            || bare(info.name, "REMOTE_ERROR_")
            || wanted == info.wc_name
            || bare(info.wc_name, "IBV_WC_")
            || wanted == info.libfabric
            || bare(info.libfabric, "FI_")
    };
    Status::all().filter(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_by_each_of_its_names() {
        for status in Status::all() {
            let info = status.info();
            assert_eq!(find(&status.code().to_string()), [status]);
            assert_eq!(find(&info.name.to_lowercase()), [status]);
            assert!(find(info.wc_name).contains(&status));
            assert!(find(info.libfabric).contains(&status));
        }
    }

    #[test]
    fn short_names_and_shared_ones() {
        assert_eq!(find("rnr"), [Status::Rnr]);
        assert_eq!(find("unknown-peer"), [Status::UnknownPeer]);
        assert_eq!(find("BAD_LENGTH"), [Status::LocalBadLength, Status::RemoteBadLength]);
        assert_eq!(find("resp_timeout_err"), [Status::UnrespRemote, Status::UnreachRemote]);
        for text in ["", "16", "256", "-1", "nonsense"] {
            assert_eq!(find(text), [], "{text}");
        }
    }
}
