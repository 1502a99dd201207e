//! What the kernel knows of the network: interfaces, addresses, routes, neighbours, and their changes.

mod link;
mod table;

pub(crate) use link::{Door, Link, Links};
pub(crate) use table::{Hop, Table};
