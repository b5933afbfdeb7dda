//! Jobs and the dispatcher by their public behaviour, a file per chapter.

mod door;
mod identity;
mod support;
