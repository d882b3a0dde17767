//! `healthcheck`: asks a probe once, for HEALTHCHECK and exec probes in an image without a shell.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::dependency;
use crate::secret::redacted;
use crate::tls;
use crate::units::{Span, span};

#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// The probe to ask; else /live of the node that the same settings would start
    #[arg(value_name = "URL")]
    pub url: Option<url::Url>,
    /// Ask /ready instead of /live
    #[arg(long)]
    pub ready: bool,
    /// Port of the node
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub port: u16,
    /// Address that the node listens on, if it is only one
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// No answer after this long is a failure
    #[arg(long, default_value_t = Span::secs(2), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(60)))]
    pub healthcheck_timeout: Span,
}

/// Asks once; the sentence that comes back says what answered.
///
/// # Errors
/// If nothing answers in time, or the answer is not 200.
pub async fn ask(settings: &Settings) -> Result<String> {
    let url = settings.url();
    let client = client(&url, *settings.healthcheck_timeout)?;
    // Docker keeps these lines.
    let shown = redacted(&url).replace(char::is_control, " ");
    let answer = client.get(&url).send().await.map_err(|error| anyhow::anyhow!("{shown}: {}", plain(&error)))?;
    let status = answer.status();
    if status != reqwest::StatusCode::OK {
        bail!("{shown}: {status}");
    }
    Ok(format!("{shown}: {status}"))
}

fn client(url: &str, limit: Duration) -> Result<reqwest::Client> {
    // The system's authorities are read only where they are needed: it takes longer than the probe.
    let tls = if url.starts_with("https:") { tls::verifying(None) } else { tls::unused() };
    dependency::client(tls?, Some(limit)).map_err(anyhow::Error::msg)
}

fn plain(error: &reqwest::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    if error.is_timeout() { "no answer in time".to_owned() } else { last.to_string() }
}

impl Settings {
    fn url(&self) -> String {
        let path = if self.ready { "/ready" } else { "/live" };
        match (&self.url, &self.listen) {
            (Some(url), _) => url.to_string(),
            (None, Some(listen)) => {
                // A node that listens on every address is asked on the loopback.
                let at = listen.replace("0.0.0.0:", "localhost:").replace("[::]:", "localhost:");
                format!("http://{at}{path}")
            }
            (None, None) => format!("http://localhost:{}{path}", self.port),
        }
    }
}

/// The subcommand: one line, exit code 0 or 1.
pub fn run(settings: &Settings) -> std::process::ExitCode {
    let asked = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")
        .and_then(|runtime| runtime.block_on(ask(settings)));
    match asked {
        Ok(sentence) => {
            println!("{sentence}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
