//! What several replicas answer to one question, for people or as JSON.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tonic::{Response, Status};

use super::access::{Access, Admin};
use super::output::say;

/// How long a replica may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What each endpoint answered, or why it did not.
pub(super) struct Answers<T>(Vec<(String, Result<T, String>)>);

impl<T> Answers<T> {
    /// Asks each endpoint, one after the other.
    ///
    /// # Errors
    /// When the endpoints or certificates cannot be used.
    pub(super) async fn of(
        access: &Access,
        question: impl AsyncFn(Admin) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<Self> {
        let dialer = access.dialer()?;
        let mut answers = vec![];
        for url in access.urls()? {
            let ask = async {
                let answer = question(access.admin(&dialer, &url).await?).await;
                answer.map(Response::into_inner).map_err(|status| anyhow::anyhow!("{}", status.message()))
            };
            let answer = match tokio::time::timeout(TIMEOUT, ask).await {
                Ok(answer) => answer.map_err(|error| format!("{error:#}")),
                Err(_) => Err("no answer in time".to_owned()),
            };
            answers.push((url.to_string(), answer));
        }
        Ok(Self(answers))
    }

    /// Prints them as text. Fails when one did not answer.
    pub(super) fn print(&self, text: impl Fn(&str, &T) -> String) -> anyhow::Result<ExitCode> {
        for (url, answer) in &self.0 {
            match answer {
                Ok(answer) => say(&text(url, answer))?,
                Err(error) => say(&format!("{url}: {error}\n"))?,
            }
        }
        Ok(self.code())
    }

    /// Prints them as a JSON list with one object for each, the answer under that name. Fails when one did not answer.
    pub(super) fn print_json(&self, name: &str, json: impl Fn(&T) -> Value) -> anyhow::Result<ExitCode> {
        let list: Vec<Value> = self
            .0
            .iter()
            .map(|(url, answer)| match answer {
                Ok(answer) => serde_json::json!({ "endpoint": url, name: json(answer) }),
                Err(error) => serde_json::json!({ "endpoint": url, "error": error }),
            })
            .collect();
        say(&format!("{}\n", serde_json::to_string_pretty(&list)?))?;
        Ok(self.code())
    }

    fn code(&self) -> ExitCode {
        if self.0.iter().all(|(_, answer)| answer.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
