//! What the chapters share.
#![allow(unreachable_pub)]

mod account;
mod held;
mod host;
mod log;
mod provider;

pub use account::Account;
pub use held::{Held, held};
pub use host::Host;
pub use log::Log;
pub use provider::{Fault, Recording};
