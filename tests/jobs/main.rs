//! Jobs and the dispatcher by their public behaviour, a file per chapter.

mod attempts;
mod delayed;
mod dependencies;
mod door;
mod field_faults;
#[path = "../support/hooked_database.rs"]
mod hooked_database;
mod identity;
mod panics;
mod resources;
mod support;
mod threads;
mod waiting;
