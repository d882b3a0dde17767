//! Keeps what is secret in a URL out of messages about text that could not be parsed as one. Parses nothing itself.

/// `text` without what may be a user and password in it: whatever stands before its last `@`, and every `password=`.
/// With several URIs in it that hides the first ones too, as a password may look like anything.
pub fn redacted(text: &str) -> String {
    let text = without_passwords(text);
    let Some(at) = text.rfind('@') else { return without_half_a_pair(text) };
    let (secret, rest) = text.split_at(at);
    let scheme = secret.find("//").map_or("", |slashes| &secret[..slashes + 2]);
    format!("{scheme}***{rest}")
}

/// A user and password whose host was forgotten, or cut off at a space in the password: what follows the colon is no port.
fn without_half_a_pair(text: String) -> String {
    let Some(slashes) = text.find("//") else { return text };
    let rest = &text[slashes + 2..];
    let authority = &rest[..rest.find(['/', '?', '#', ';', ',']).unwrap_or(rest.len())];
    match authority.rsplit_once(':') {
        Some((user, password)) if !authority.ends_with(']') && !password.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{}//{user}:***{}", &text[..slashes], &rest[authority.len()..])
        }
        _ => text,
    }
}

fn without_passwords(text: &str) -> String {
    const MARK: &str = "password=";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(MARK) {
        let (before, after) = rest.split_at(start + MARK.len());
        shown.push_str(before);
        shown.push_str("***");
        rest = &after[after.find('&').unwrap_or(after.len())..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_hidden_and_the_rest_is_not() {
        for (text, shown) in [
            ("http://u:p@ss@h:1/x", "http://***@h:1/x"),
            ("http://u:p/a?s#s@h", "http://***@h"),
            ("http://u:p@h,http://v:q@i", "http://***@i"),
            ("u:p@h:1", "***@h:1"),
            ("http://h:70000/y", "http://h:70000/y"),
            ("http://[::1]:80/y", "http://[::1]:80/y"),
            ("http://[::1]/y", "http://[::1]/y"),
            ("http://u:secret/y", "http://u:***/y"),
            ("db=postgres://u:top", "db=postgres://u:***"),
            ("db=postgres://u:p@h:x/d;optional", "db=postgres://***@h:x/d;optional"),
            ("postgres://h/d?password=p@w&sslmode=no", "postgres://h/d?password=***&sslmode=no"),
        ] {
            assert_eq!(redacted(text), shown);
        }
    }
}
