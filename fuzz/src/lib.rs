//! The bodies of the fuzz targets live beside the tests of `srd-core`, which replay the corpus through them.

#[path = "../../srd-core/tests/support/fuzzing.rs"]
mod fuzzing;

#[path = "../../srd-core/tests/support/card_fuzzing.rs"]
mod card_fuzzing;

pub use card_fuzzing::card;
pub use fuzzing::{decode, endpoint, garbage};
