//! The jobs: an orchestrator a document, and the leaves that it submits. Each holds only what it
//! declares, and only while it runs: while the model thinks, no connection is held.

use std::sync::Arc;

use nucleo_runtime::db::sqlite::SqliteProvider;
use nucleo_runtime::llm::Conversation;
use nucleo_runtime::models::{Depth, Grade, ModelSlot};
use nucleo_runtime::{
    Doer, Job, JobContext, JobError, JobRequirements, JobResources, JobType, OrchestratorContext,
};

use super::corpus::Document;
use super::model::Task;
use super::store::{self, Findings, Passage};

/// Makes the tables.
pub(crate) struct PrepareDatabase {
    pub(crate) database: Arc<SqliteProvider>,
}

impl Job for PrepareDatabase {
    type Output = ();

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
            .provider(&self.database)
            .transaction()
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<(), JobError> {
        resources.get(&self.database)?.try_with(store::prepare)
    }
}

/// Puts the documents' paragraphs in: all of them, or none.
pub(crate) struct LoadDocuments {
    pub(crate) database: Arc<SqliteProvider>,
    pub(crate) documents: Vec<Arc<Document>>,
}

impl Job for LoadDocuments {
    type Output = ();

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
            .provider(&self.database)
            .transaction()
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<(), JobError> {
        let documents = self.documents.iter().map(|document| &**document);
        resources
            .get(&self.database)?
            .with(|conn| store::load(conn, documents))
    }
}

/// Analyses one document: an agent. It holds nothing itself.
pub(crate) struct AnalyseDocument {
    pub(crate) database: Arc<SqliteProvider>,
    pub(crate) document: Arc<Document>,
}

/// What an agent has to say at the end.
#[derive(Debug)]
pub(crate) struct Analysis {
    pub(crate) path: String,
    pub(crate) headline: String,
}

impl Doer for AnalyseDocument {
    type Output = Analysis;

    fn display_name(&self) -> Option<String> {
        Some(self.document.path.clone())
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<Analysis, JobError> {
        let path = &self.document.path;
        let text = self.document.paragraphs.join("\n");

        let terms = context
            .submit_in_step(AskModel::to(Task::Terms, &text))?
            .get()?;
        let search = SearchPassages {
            database: Arc::clone(&self.database),
            query: any_of(&terms),
            except: path.clone(),
        };
        let related = context.submit_in_step(search)?.get()?;

        let passages = related.iter().map(|passage| &*passage.text);
        let summarize = AskModel::to(Task::Summary, &text).beside(passages);
        let summary = context.submit_in_step(summarize)?.get()?;
        let save = SaveFindings {
            database: Arc::clone(&self.database),
            findings: Findings {
                path: path.clone(),
                terms: terms.to_string(),
                summary: summary.to_string(),
                related: related.to_vec(),
            },
        };
        context.submit_in_step(save)?.get()?;

        let headline = context
            .submit_in_step(AskModel::to(Task::Headline, &summary))?
            .get()?;
        Ok(Analysis {
            path: path.clone(),
            headline: headline.to_string(),
        })
    }
}

/// A full-text query for any of the terms that a model listed, whatever it wrote.
fn any_of(terms: &str) -> String {
    let words = terms.split(|c: char| !c.is_alphanumeric());
    let quoted: Vec<_> = words
        .filter(|word| !word.is_empty())
        .map(|word| format!("\"{word}\""))
        .collect();
    quoted.join(" OR ")
}

const ANSWER: ModelSlot = ModelSlot::new("answer");

/// One call of a model.
pub(crate) struct AskModel {
    task: Task,
    conversation: Conversation,
}

impl AskModel {
    fn to(task: Task, text: &str) -> Self {
        Self {
            task,
            conversation: task.about(text),
        }
    }

    /// Gives the model more to read, besides what it is asked about.
    fn beside<'a>(mut self, texts: impl Iterator<Item = &'a str>) -> Self {
        self.conversation = texts.fold(self.conversation, Conversation::user);
        self
    }
}

impl Job for AskModel {
    type Output = String;

    fn job_type(&self) -> JobType {
        JobType::LlmCall
    }

    fn action(&self) -> String {
        format!("{:?}", self.task)
    }

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().model(
            ANSWER,
            Grade::Small,
            Depth::Immediate,
            self.conversation.estimated_tokens(),
            self.task.output(),
        )
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<String, JobError> {
        let answer = resources
            .model(ANSWER)?
            .client()
            .respond(&self.conversation)?;
        Ok(answer.text().to_owned())
    }
}

/// A tool: looks for passages in the other documents.
pub(crate) struct SearchPassages {
    database: Arc<SqliteProvider>,
    query: String,
    except: String,
}

impl Job for SearchPassages {
    type Output = Vec<Passage>;

    fn job_type(&self) -> JobType {
        JobType::Tool
    }

    fn requirements(&self) -> JobRequirements {
        // It leaves the permit to write to those who do.
        JobRequirements::none().provider(&self.database).read_only()
    }

    fn execute(
        &mut self,
        resources: &JobResources,
        _: &JobContext,
    ) -> Result<Vec<Passage>, JobError> {
        if self.query.is_empty() {
            return Ok(Vec::new());
        }
        resources
            .get(&self.database)?
            .with(|conn| store::search(conn, &self.query, &self.except))
    }
}

/// A tool: saves what was found out, whole or not at all.
pub(crate) struct SaveFindings {
    database: Arc<SqliteProvider>,
    findings: Findings,
}

impl Job for SaveFindings {
    type Output = ();

    fn job_type(&self) -> JobType {
        JobType::Tool
    }

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
            .provider(&self.database)
            .transaction()
    }

    fn execute(&mut self, resources: &JobResources, context: &JobContext) -> Result<(), JobError> {
        resources
            .get(&self.database)?
            .with(|conn| store::save(conn, context.workflow_id(), &self.findings))
    }
}
