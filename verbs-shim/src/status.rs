//! Finds completion statuses by what people call them.

use srd_core::card::Status;

/// The statuses that are called `text`: a number (`vendor_err`, `0x` before it if hexadecimal), the device's name with
/// or without the part that says where it arose (`RNR`, `REMOTE_ERROR_RNR`), the name that verbs gives
/// (`IBV_WC_RNR_RETRY_EXC_ERR`, with or without `IBV_WC_`), or libfabric's (`FI_ENORX`). Case does not matter, and
/// hyphens stand for underscores. Several statuses share names of verbs and libfabric.
pub fn find(text: &str) -> Vec<Status> {
    let wanted = text.trim().to_ascii_uppercase().replace('-', "_");
    let code = wanted.strip_prefix("0X").map_or_else(|| wanted.parse(), |digits| u8::from_str_radix(digits, 16));
    if let Ok(code) = code {
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

/// All that `text` may mean: what [`find`] finds, then, if it is a decimal number, what verbs tells by that number
/// (`enum ibv_wc_status`). perftest prints that, and `vendor_err` in hexadecimal.
pub fn meanings(text: &str) -> Vec<Status> {
    let mut found = find(text);
    if let Ok(number) = text.trim().parse::<u32>() {
        found.extend(Status::all().filter(|s| s.info().wc_status == number && u32::from(s.code()) != number));
    }
    found
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
        for text in ["", "16", "256", "-1", "nonsense", "0x", "0x10", "0x100"] {
            assert_eq!(find(text), [], "{text}");
        }
    }

    #[test]
    fn numbers_as_perftest_prints_them() {
        assert_eq!([find("0xa"), find("0X0A"), meanings("0xa")], [[Status::Rnr]; 3]);
        assert_eq!(find("13"), [Status::UnrespRemote]);
        assert_eq!(meanings("13"), [Status::UnrespRemote, Status::Rnr]);
        assert_eq!(meanings("20"), [Status::UnrespRemote, Status::UnreachRemote]);
        assert_eq!(meanings("16"), [Status::Abort]);
        assert_eq!((meanings("0"), meanings("rnr")), (vec![Status::Ok], vec![Status::Rnr]));
        assert_eq!(meanings("17"), []);
    }
}
