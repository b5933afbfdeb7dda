//! Slots for subprocesses that are spoken to over their standard streams (`CNT-3`).

use std::collections::HashMap;
use std::sync::Arc;

use super::counting::CountingGate;
use crate::error::JobError;
use crate::sync::Mutex;

/// How many calls of MCP servers over stdio may be under way: in the whole pool (`mcp:stdio`) and
/// of each server (`mcp:stdio:<endpoint>`).
///
/// A job that calls such a server asks for both, with
/// [`JobRequirements::mcp_slot`](crate::JobRequirements::mcp_slot).
///
/// ```
/// use nucleo_runtime::JobRequirements;
/// use nucleo_runtime::admission::McpSlots;
///
/// let slots = McpSlots::new(8, 2)?;
/// let search = slots.endpoint("search")?;
/// assert_eq!(search.gate().name(), "mcp:stdio:search");
/// let requirements = JobRequirements::none().mcp_slot(&search);
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
#[derive(Debug)]
pub struct McpSlots {
    pool: Arc<CountingGate>,
    per_endpoint: u32,
    endpoints: Mutex<HashMap<String, Arc<CountingGate>>>,
}

/// The slots of one MCP server. A clone is the same.
#[derive(Clone, Debug)]
pub struct McpEndpoint {
    pool: Arc<CountingGate>,
    gate: Arc<CountingGate>,
}

impl McpSlots {
    /// A pool of so many slots, of which each server has at most `per_endpoint`.
    ///
    /// # Errors
    /// `InvalidInput` when either is zero.
    pub fn new(pool: u32, per_endpoint: u32) -> Result<Self, JobError> {
        if per_endpoint == 0 {
            return Err(JobError::invalid_input(
                "per_endpoint",
                per_endpoint,
                "must be positive",
            ));
        }
        Ok(Self {
            pool: Arc::new(CountingGate::new("mcp:stdio", pool)?),
            per_endpoint,
            endpoints: Mutex::default(),
        })
    }

    /// The gate of the whole pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<CountingGate> {
        &self.pool
    }

    /// The slots of the server of this name, the same ones at every call.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name.
    pub fn endpoint(&self, name: &str) -> Result<McpEndpoint, JobError> {
        if name.trim().is_empty() {
            return Err(JobError::invalid_input(
                "endpoint",
                name,
                "must not be blank",
            ));
        }
        let mut endpoints = self.endpoints.lock();
        let gate = match endpoints.get(name) {
            Some(gate) => Arc::clone(gate),
            None => {
                let gate = CountingGate::new(format!("mcp:stdio:{name}"), self.per_endpoint)?;
                let gate = Arc::new(gate);
                endpoints.insert(name.to_owned(), Arc::clone(&gate));
                gate
            }
        };
        Ok(McpEndpoint {
            pool: Arc::clone(&self.pool),
            gate,
        })
    }
}

impl McpEndpoint {
    /// The gate of the whole pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<CountingGate> {
        &self.pool
    }

    /// The gate of this server.
    #[must_use]
    pub fn gate(&self) -> &Arc<CountingGate> {
        &self.gate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobRequirements;

    #[test]
    fn a_call_names_the_pool_and_its_server() {
        let slots = McpSlots::new(8, 2).unwrap();
        let search = slots.endpoint("search").unwrap();
        assert!(Arc::ptr_eq(
            search.gate(),
            slots.endpoint("search").unwrap().gate()
        ));
        assert!(Arc::ptr_eq(search.pool(), slots.pool()));
        assert_eq!((search.gate().capacity(), slots.pool().capacity()), (2, 8));
        let requirements = JobRequirements::none().mcp_slot(&search);
        assert_eq!(requirements.summary(), "mcp:stdio, mcp:stdio:search");
    }

    #[test]
    fn slots_of_zero_and_a_blank_name_are_refused() {
        assert!(McpSlots::new(0, 1).is_err());
        assert!(McpSlots::new(1, 0).is_err());
        assert!(McpSlots::new(1, 1).unwrap().endpoint(" ").is_err());
    }
}
