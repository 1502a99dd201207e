//! What the kernel knows of the network: interfaces, addresses, routes, neighbours, and their changes.

mod link;
mod netlink;
mod table;

pub(crate) use link::{Link, Links};
pub(crate) use netlink::Netlink;
pub(crate) use table::{Hop, Table};
