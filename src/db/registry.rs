//! The providers of a dispatcher, by name (`DB-5`).

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{DbResourceProvider, ErasedProvider, erase, identity};
use crate::error::JobError;
use crate::sync::Mutex;

/// Database providers by name. A name is taken once.
#[derive(Default)]
pub struct DbResourceProviders {
    entries: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Clone)]
struct Entry {
    type_name: &'static str,
    provider: Arc<dyn Any + Send + Sync>,
    erased: Arc<dyn ErasedProvider>,
}

impl DbResourceProviders {
    /// No provider yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `provider` under its name. The same one again is nothing new.
    ///
    /// # Errors
    /// `IllegalState` when another provider has the name; that one stays.
    pub fn register<P: DbResourceProvider>(&self, provider: &Arc<P>) -> Result<(), JobError> {
        let name = provider.name().to_owned();
        let entry = Entry {
            type_name: type_name::<P>(),
            provider: Arc::clone(provider) as _,
            erased: erase(provider),
        };
        let mut entries = self.entries.lock();
        match entries.get(&name) {
            None => {
                entries.insert(name, entry);
                Ok(())
            }
            Some(known) if known.erased.same_as(identity(provider)) => Ok(()),
            Some(known) => Err(JobError::illegal_state(format!(
                "the database provider '{name}' is registered already, as {}: give this one another \
                 name",
                known.type_name
            ))),
        }
    }

    /// The provider of this name and type.
    ///
    /// # Errors
    /// `IllegalState` when there is none of this name (it lists those that exist), or when it is
    /// of another type (it names both).
    pub fn get<P: DbResourceProvider>(&self, name: &str) -> Result<Arc<P>, JobError> {
        let entry = self.entry(name)?;
        entry.provider.downcast().map_err(|_| {
            JobError::illegal_state(format!(
                "the database provider '{name}' is a {}, not a {}",
                entry.type_name,
                type_name::<P>()
            ))
        })
    }

    /// The names that are taken, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.entries.lock().keys().cloned().collect()
    }

    fn entry(&self, name: &str) -> Result<Entry, JobError> {
        let found = self.entries.lock().get(name).cloned();
        found.ok_or_else(|| {
            let names = self.names();
            let known = if names.is_empty() {
                "there is none at all".to_owned()
            } else {
                format!("there are: {}", names.join(", "))
            };
            JobError::illegal_state(format!(
                "no database provider '{name}' is registered; {known}"
            ))
        })
    }
}

impl fmt::Debug for DbResourceProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbResourceProviders")
            .field("names", &self.names())
            .finish()
    }
}
