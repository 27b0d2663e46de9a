//! Listen and advertise URLs: `http`, `https`, `unix` and `unixs`, with etcd's rules and error texts.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// The scheme of a URL: socket family and encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// TCP, in the clear.
    Http,
    /// TCP with TLS.
    Https,
    /// A unix socket, in the clear.
    Unix,
    /// A unix socket with TLS.
    Unixs,
}

impl Scheme {
    fn text(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        }
    }

    /// Whether connections speak TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Unixs)
    }

    /// Whether the address is a path.
    pub fn is_unix(self) -> bool {
        matches!(self, Scheme::Unix | Scheme::Unixs)
    }
}

/// A URL to listen at or to advertise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    scheme: Scheme,
    /// `host:port`, or for unix sockets whatever stands between `//` and the next `/`.
    authority: String,
    /// Empty for TCP.
    path: String,
}

/// Why a URL, or a list of them, was refused; the texts are etcd's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL at all.
    #[error("parse {0:?}: invalid URL")]
    Invalid(String),
    /// TCP URLs need a host and a port.
    #[error("URL address does not have the form \"host:port\": {0}")]
    NotHostPort(String),
    /// TCP URLs have no path.
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// A scheme that etcd does not know.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// Binding takes addresses, not names.
    #[error("expected IP in URL for binding ({0})")]
    NotIp(String),
    /// An advertised URL needs a host.
    #[error("unexpected empty host ({0})")]
    EmptyHost(String),
}

impl Url {
    /// Parses one URL.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let text = text.trim();
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(UrlError::Scheme(text.to_owned()));
        };
        if text.contains(|c: char| c.is_ascii_control() || c == ' ') {
            return Err(UrlError::Invalid(text.to_owned()));
        }
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(UrlError::Scheme(text.to_owned())),
        };
        // `unix:path` has no authority; Go keeps it as an opaque part, which etcd then treats as an empty address.
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => match rest.find('/') {
                Some(at) => (&rest[..at], &rest[at..]),
                None => (rest, ""),
            },
            None => ("", rest),
        };
        let url = Url { scheme, authority: authority.to_owned(), path: path.to_owned() };
        if !scheme.is_unix() {
            if url.split_host_port().is_none() {
                return Err(UrlError::NotHostPort(text.to_owned()));
            }
            if !url.path.is_empty() {
                return Err(UrlError::Path(text.to_owned()));
            }
        }
        Ok(url)
    }

    /// Parses a comma-separated list; the result is sorted and without duplicates, as etcd keeps it.
    ///
    /// # Errors
    /// The first URL that is not valid.
    pub fn parse_list(text: &str) -> Result<Vec<Url>, UrlError> {
        let mut urls = text.split(',').map(Url::parse).collect::<Result<Vec<_>, _>>()?;
        urls.sort_by_key(Url::to_string);
        urls.dedup();
        Ok(urls)
    }

    /// Its scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// `host:port` for TCP; for a unix socket the path, which etcd makes of authority and path together.
    pub fn address(&self) -> String {
        format!("{}{}", self.authority, self.path)
    }

    /// The authority alone: what etcd puts as a host into generated certificates.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The file of a unix socket.
    pub fn socket_path(&self) -> PathBuf {
        PathBuf::from(self.address())
    }

    /// The host without brackets; empty if there is none.
    pub fn host(&self) -> &str {
        self.split_host_port().map_or("", |(host, _)| host)
    }

    /// The port as written; empty if there is none.
    pub fn port(&self) -> &str {
        self.split_host_port().map_or("", |(_, port)| port)
    }

    /// The same URL at another host.
    #[must_use]
    pub fn with_host(&self, host: IpAddr) -> Url {
        let authority = match host {
            IpAddr::V4(ip) => format!("{ip}:{}", self.port()),
            IpAddr::V6(ip) => format!("[{ip}]:{}", self.port()),
        };
        Url { authority, ..self.clone() }
    }

    fn split_host_port(&self) -> Option<(&str, &str)> {
        let (host, port) = self.authority.rsplit_once(':')?;
        if port.parse::<u16>().is_err() && !port.is_empty() {
            return None;
        }
        if let Some(inner) = host.strip_prefix('[') {
            return inner.strip_suffix(']').map(|inner| (inner, port));
        }
        if host.contains(':') { None } else { Some((host, port)) }
    }

    /// etcd binds to `localhost` and to addresses, never to names that a resolver could move.
    ///
    /// # Errors
    /// [`UrlError::NotIp`].
    pub fn check_bind(&self) -> Result<(), UrlError> {
        if self.scheme.is_unix() || self.host() == "localhost" || self.host().parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        Err(UrlError::NotIp(self.to_string()))
    }

    /// An advertised URL needs a host.
    ///
    /// # Errors
    /// [`UrlError::EmptyHost`].
    pub fn check_host(&self) -> Result<(), UrlError> {
        if self.scheme.is_unix() || !self.host().is_empty() {
            return Ok(());
        }
        Err(UrlError::EmptyHost(self.to_string()))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.text(), self.authority, self.path)
    }
}

/// The URLs as text, for logs and messages.
pub fn join(urls: &[Url]) -> String {
    urls.iter().map(Url::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_addresses_are_authority_and_path() {
        for (text, address) in [
            ("unix://etcd.unix:1", "etcd.unix:1"),
            ("unix:///run/eddy.sock", "/run/eddy.sock"),
            ("unixs://dir/eddy.sock", "dir/eddy.sock"),
            ("http://[::1]:2379", "[::1]:2379"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(url.address(), address);
            assert_eq!(url.to_string(), text);
        }
        assert_eq!(Url::parse("http://[::1]:2379").unwrap().host(), "::1");
    }

    #[test]
    fn bad_urls_are_refused_in_etcds_words() {
        for (text, error) in [
            ("http://localhost", "URL address does not have the form \"host:port\": http://localhost"),
            ("http://localhost:1/a", "URL must not contain a path: http://localhost:1/a"),
            ("ftp://localhost:1", "URL scheme must be http, https, unix, or unixs: ftp://localhost:1"),
            ("localhost", "URL scheme must be http, https, unix, or unixs: localhost"),
            ("http://h:99999", "URL address does not have the form \"host:port\": http://h:99999"),
        ] {
            assert_eq!(Url::parse(text).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn lists_are_sorted_and_unique() {
        let urls = Url::parse_list("http://b:1, http://a:1,http://b:1").unwrap();
        assert_eq!(join(&urls), "http://a:1,http://b:1");
    }
}
