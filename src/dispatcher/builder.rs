//! Putting a dispatcher together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::JobDispatcher;
use super::books::Books;
use super::chores::Chores;
use super::inner::{Inner, Parts};
use super::models::{Models, Settings};
use super::reaper::Pool;
use super::routing::{Marks, Router};
use crate::admission::memory_source::ProcessMemory;
use crate::admission::{CountingGate, MemorySettings, MemorySource};
use crate::aside::Elsewhere;
use crate::clock::{Clock, SystemClock};
use crate::db::{DbResourceProvider, DbResourceProviders};
use crate::error::JobError;
use crate::events::MessageBus;
use crate::llm::{ClientProvider, FixedClients, LlmClient, SecretStore};
use crate::models::{Catalog, ModelPicker, ModelSpec, SpendGate, TokenCounter};
use crate::threads::{DEFAULT_STACK, Seat, Threads, derived_cap};

/// The evaluator, the timer and the two queues.
const OWN_THREADS: usize = 4;
/// The least that works: the runtime's own threads, one of each kind of reaper, and one job.
const MIN_THREADS: usize = OWN_THREADS + 4;
/// With this many threads each pool of reapers has more than one.
const AMPLE_THREADS: usize = 64;
/// The least stack that a thread of the standard library starts on everywhere.
const MIN_STACK: usize = 64 * 1024;
/// More than this no system can be asked for.
const MAX_STACK: usize = isize::MAX as usize;
/// The size of the HTTP pool unless set (CNT-2).
const DEFAULT_HTTP_CONNECTIONS: u32 = 1_000;

/// A setting that cannot work.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{field}: {rule}")]
#[non_exhaustive]
pub struct BuildError {
    /// The setting at fault.
    pub field: &'static str,
    /// The rule that it breaks.
    pub rule: String,
}

impl From<BuildError> for JobError {
    fn from(error: BuildError) -> Self {
        JobError::invalid_input(error.field, "", error.rule)
    }
}

/// Settings of a [`JobDispatcher`]; see [`JobDispatcher::builder`].
#[must_use = "nothing is built until `build` is called"]
pub struct JobDispatcherBuilder {
    clock: Arc<dyn Clock>,
    http_connections: u32,
    max_threads: Option<usize>,
    stack_size: usize,
    models: Settings,
    databases: DbResourceProviders,
    memory: Memory,
    memory_progress: bool,
    refused: Option<BuildError>,
}

/// What the memory gate reads.
enum Memory {
    /// The process's resident set, where the system tells it.
    Process,
    Source(Arc<dyn MemorySource>),
    /// There is no gate.
    None,
}

impl JobDispatcherBuilder {
    pub(super) fn new() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            http_connections: DEFAULT_HTTP_CONNECTIONS,
            max_threads: None,
            stack_size: DEFAULT_STACK,
            models: Settings::default(),
            databases: DbResourceProviders::new(),
            memory: Memory::Process,
            memory_progress: true,
            refused: None,
        }
    }

    /// The source of time. The system's unless set.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How many jobs may use HTTP at once. 1 000 unless set; zero is refused.
    pub fn http_connections(mut self, connections: u32) -> Self {
        self.http_connections = connections;
        self
    }

    /// How many threads the runtime may have alive at once, its own and those of subscriptions
    /// included. Derived from the system's limits unless set; less than 8 is refused. Set it with
    /// care: past the system's limit the process is aborted.
    pub fn max_threads(mut self, threads: usize) -> Self {
        self.max_threads = Some(threads);
        self
    }

    /// The stack of every thread, in bytes. 2 MiB unless set; less than 64 KiB is refused.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = bytes;
        self
    }

    /// Adds a model with a client of its own, as the preferred one of its grade: the least that
    /// jobs which ask for models need. For several of a provider take a [`catalog`](Self::catalog)
    /// and a [`client`](Self::client).
    pub fn model(mut self, spec: ModelSpec, client: Arc<dyn LlmClient>) -> Self {
        self.models.own.push((spec, client));
        self
    }

    /// The models of the deployment. None unless set; then a job that asks for a model fails.
    pub fn catalog(mut self, catalog: Catalog) -> Self {
        self.models.catalog = catalog;
        self
    }

    /// Has this client serve every `Llm` of the provider that catalog entries name by `key`. For
    /// embeddings and decisions give a [`provider`](Self::provider).
    pub fn client(self, key: impl Into<String>, client: Arc<dyn LlmClient>) -> Self {
        self.provider(FixedClients::new(key).llm(client))
    }

    /// Adds whoever makes the clients of a provider. A second one of the same key is refused.
    pub fn provider(mut self, provider: impl ClientProvider) -> Self {
        self.models.providers.push(Arc::new(provider));
        self
    }

    /// Where clients get their credentials from. The environment unless set.
    pub fn secrets(mut self, secrets: impl SecretStore) -> Self {
        self.models.secrets = Arc::new(secrets);
        self
    }

    /// Who chooses models. A [`DefaultModelPicker`](crate::models::DefaultModelPicker) unless set.
    pub fn picker(mut self, picker: impl ModelPicker) -> Self {
        self.models.picker = Arc::new(picker);
        self
    }

    /// Who counts the tokens of prompts. A [`ByteEstimate`](crate::models::ByteEstimate) unless set.
    pub fn token_counter(mut self, counter: impl TokenCounter) -> Self {
        self.models.counter = Arc::new(counter);
        self
    }

    /// Adds a judge of what attempts are about to spend, such as a
    /// [`CostLedger`](crate::observe::CostLedger). All have to agree. None unless set. Each takes a
    /// thread or two.
    pub fn spend_gate(mut self, gate: Arc<dyn SpendGate>) -> Self {
        self.models.spend_gates.push(gate);
        self
    }

    /// The longest `Retry-After` that a job waits for; one above it fails the job. 15 minutes unless
    /// set.
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.models.max_retry_after = longest;
        self
    }

    /// Registers a database provider under its name, to be found through
    /// [`JobDispatcher::databases`]. A second provider under a taken name is refused.
    pub fn database<P: DbResourceProvider>(mut self, provider: &Arc<P>) -> Self {
        if let Err(error) = self.databases.register(provider) {
            self.refused.get_or_insert(BuildError {
                field: "database",
                rule: error.to_string(),
            });
        }
        self
    }

    /// What the memory gate reads. The process's resident set against the tightest of its control
    /// group's limit and physical memory unless set, and no gate where the system does not tell
    /// them; see [`memory_source`](crate::admission::memory_source) for a better one.
    ///
    /// The gate starts no job that holds anything at 95 % and above until memory is below 90 %, and
    /// then lets those that waited go one by one.
    pub fn memory(mut self, source: impl MemorySource) -> Self {
        self.memory = Memory::Source(Arc::new(source));
        self
    }

    /// No memory gate: jobs start whatever memory reads.
    pub fn without_memory_gate(mut self) -> Self {
        self.memory = Memory::None;
        self
    }

    /// Whether one job goes every 30 seconds while memory holds everyone back and nothing runs
    /// whose end could free any. It does unless set: a source that never falls would otherwise stop
    /// the process for good. Each is logged as an error.
    pub fn memory_progress(mut self, on: bool) -> Self {
        self.memory_progress = on;
        self
    }

    /// Builds the dispatcher. It takes no submissions until it is started.
    ///
    /// # Errors
    /// The first setting that cannot work, with the rule that it breaks.
    pub fn build(mut self) -> Result<JobDispatcher, BuildError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let cap = self.max_threads.unwrap_or_else(derived_cap);
        let books = self.models.spend_gates.len();
        let least = MIN_THREADS + books;
        if cap < least {
            return Err(BuildError {
                field: "max_threads",
                rule: format!(
                    "must be at least {least}, {OWN_THREADS} of which are the runtime's own, 3 are \
                     kept to end jobs that do not end by themselves and {books} to tell spend gates; \
                     it is {cap}"
                ),
            });
        }
        if self.stack_size > MAX_STACK {
            return Err(BuildError {
                field: "stack_size",
                rule: format!(
                    "must be at most {MAX_STACK} bytes, which is all that one allocation may have; it is {}",
                    self.stack_size
                ),
            });
        }
        if self.stack_size < MIN_STACK {
            return Err(BuildError {
                field: "stack_size",
                rule: format!(
                    "must be at least {MIN_STACK} bytes; it is {}",
                    self.stack_size
                ),
            });
        }
        let refused = |field: &'static str| {
            move |error: JobError| BuildError {
                field,
                rule: error.to_string(),
            }
        };
        let http =
            CountingGate::http(self.http_connections).map_err(refused("http_connections"))?;
        let progress = self.memory_progress;
        let memory = self
            .memory
            .source()
            .map(|source| MemorySettings { source, progress });
        let threads = Threads::new(cap, self.stack_size);
        let per_pool = if cap >= AMPLE_THREADS { 2 } else { 1 };
        let pool = |name, seats: usize| {
            let seats: Vec<Seat> = (0..seats).filter_map(|_| threads.try_seat(cap)).collect();
            Pool::new(name, Arc::clone(&self.clock), seats)
        };
        let gates = std::mem::take(&mut self.models.spend_gates);
        let reapers = per_pool * (2 + gates.len()) + 1;
        let books = Books::new(Arc::clone(&self.clock), gates, || {
            (0..per_pool)
                .filter_map(|_| threads.try_seat(cap))
                .collect()
        });
        let models =
            Models::new(self.models, books).map_err(|(field, rule)| BuildError { field, rule })?;
        let own_seats = (0..OWN_THREADS)
            .filter_map(|_| threads.try_seat(cap))
            .collect();
        let closers = pool("nucleo-close", per_pool);
        let chores = Arc::new(Chores::new(
            Arc::clone(&self.clock),
            Arc::clone(&threads),
            Arc::clone(&closers),
        ));
        let inner = Inner::new(Parts {
            own_seats,
            bus: MessageBus::new(Arc::clone(&self.clock), Arc::clone(&threads)),
            router: Router::new(Marks::new(cap, OWN_THREADS + reapers)),
            aborters: pool("nucleo-abort", per_pool),
            settlers: pool("nucleo-settle", 1).careful(Arc::clone(&chores) as Arc<dyn Elsewhere>),
            closers,
            chores,
            clock: self.clock,
            threads,
            http: Arc::new(http),
            models,
            databases: self.databases,
            memory,
        });
        Ok(JobDispatcher::new(inner))
    }
}

impl Memory {
    fn source(self) -> Option<Arc<dyn MemorySource>> {
        match self {
            Self::Source(source) => Some(source),
            Self::None => None,
            Self::Process => match ProcessMemory::new() {
                Ok(process) => Some(Arc::new(process)),
                Err(error) => {
                    crate::aside::warn!("there is no memory gate: {error}");
                    None
                }
            },
        }
    }
}

impl fmt::Debug for JobDispatcherBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobDispatcherBuilder")
            .field("clock", &self.clock)
            .field("http_connections", &self.http_connections)
            .field("max_threads", &self.max_threads)
            .field("stack_size", &self.stack_size)
            .finish_non_exhaustive()
    }
}
