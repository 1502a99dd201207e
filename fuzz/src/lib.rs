//! The bodies of the fuzz targets live beside the tests of `srd-core`, which replay the corpus through them.

#[path = "../../srd-core/tests/support/fuzzing.rs"]
mod fuzzing;

pub use fuzzing::{decode, endpoint, garbage};
