//! What happened, in order, from whichever thread.

use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Log {
    pub fn note(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}
