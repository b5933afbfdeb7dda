//! Jobs and the dispatcher by their public behaviour, a file per chapter.

mod attempts;
mod delayed;
mod dependencies;
mod door;
mod field_faults;
mod identity;
mod panics;
mod resources;
mod support;
mod threads;
mod waiting;
