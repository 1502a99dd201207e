//! What the user wants of the devices, from the environment.

use std::path::PathBuf;
use std::sync::OnceLock;

use verbs_shim::NicConfig;
use verbs_shim::options::Options;

/// The options, read once; a sentence if they make no sense.
fn options() -> Result<&'static Options, String> {
    static OPTIONS: OnceLock<Result<Options, String>> = OnceLock::new();
    OPTIONS.get_or_init(|| Options::from_env().map_err(|e| e.to_string())).as_ref().map_err(Clone::clone)
}

/// The devices, in the order of their names.
pub(crate) fn devices() -> Result<Vec<NicConfig>, String> {
    options()?.devices().map_err(|e| e.to_string())
}

/// Begins to log.
pub(crate) fn start_log() -> Result<(), String> {
    options()?.start_log().map_err(|e| e.to_string())
}

/// Whether programs may use the queues in memory themselves.
pub(crate) fn rings() -> bool {
    options().is_ok_and(|options| options.rings)
}

/// A directory of this user's in memory.
pub(crate) fn runtime_dir() -> Result<PathBuf, String> {
    options()?.runtime_dir().map_err(|e| e.to_string())
}
