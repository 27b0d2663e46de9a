//! What an operator gives: configuration files, flags, variables.

use std::path::Path;

use eddy_server::cli;
use eddy_server::config::url::{Url, join};
use eddy_server::config::value::parse_duration;
use eddy_server::config::{Config, file};

/// The first byte says what the rest is.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match kind % 3 {
        0 => as_file(text),
        1 => as_flags(text),
        _ => as_values(text),
    }
}

fn as_file(text: &str) {
    let Ok(config) = file::parse(text, Path::new("eddy.yaml")) else { return };
    check(config);
}

/// A line is an argument, or a variable where it begins with a dollar sign. Other files are not read: they may be any.
fn as_flags(text: &str) {
    let lines = || text.lines().filter(|line| !line.to_ascii_lowercase().contains("config"));
    let args: Vec<String> = lines().filter(|line| !line.starts_with('$')).map(str::to_owned).collect();
    let env = lines().filter_map(|line| line.strip_prefix('$')?.split_once('='));
    let env: Vec<(String, String)> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    match cli::parse(args, env) {
        Ok(cli::Action::Serve(invocation)) => urls(&invocation.config),
        Ok(cli::Action::Print(text)) => assert!(!text.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && [1, 2].contains(&error.exit_code())),
    }
}

fn as_values(text: &str) {
    if let Ok(duration) = parse_duration(text) {
        assert!(duration.as_secs() <= i64::MAX as u64 / 1_000_000_000 + 1, "{text}: {duration:?}");
    }
    if let Ok(urls) = Url::parse_list(text) {
        again(&urls);
    }
}

fn check(config: Config) {
    match config.finish() {
        Ok(config) => urls(&config),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// URLs that were taken are URLs when they are written.
fn urls(config: &Config) {
    for urls in [&config.listen_client_urls, &config.listen_peer_urls, &config.advertise_client_urls] {
        again(urls);
    }
    assert!(config.quota_bytes() != Some(0));
    assert!(!config.slow_request().is_zero());
}

fn again(urls: &[Url]) {
    for url in urls {
        let written = Url::parse(&url.to_string()).unwrap_or_else(|error| panic!("{}: {error}", join(urls)));
        // `unix:a` and `unix://a` are the same socket.
        assert_eq!((written.scheme(), written.address()), (url.scheme(), url.address()));
    }
}
