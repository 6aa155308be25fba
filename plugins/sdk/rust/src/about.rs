//! What a plugin says of itself: shown by the agent's tools, and what editors complete a config with.

use crate::bindings_about::exports::waystation::plugin::about::Description;

/// Made by [`about!`](crate::about!) and given to [`export_transform!`](crate::export_transform!).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Its name; the crate's, if nothing else is said.
    pub name: &'static str,
    /// Its version; the crate's, if nothing else is said.
    pub version: &'static str,
    /// One sentence; the crate's description, if nothing else is said.
    pub summary: &'static str,
    /// JSON Schema of the `config` table; empty when anything goes.
    pub config_schema: &'static str,
}

impl About {
    /// With this JSON Schema of the config. `testing::assert_schema` keeps it true.
    #[must_use]
    pub const fn config_schema(self, config_schema: &'static str) -> Self {
        Self { config_schema, ..self }
    }

    #[doc(hidden)]
    #[must_use]
    pub fn describe(self) -> Description {
        let Self { name, version, summary, config_schema } = self;
        let [name, version, summary, config_schema] =
            [name, version, summary, config_schema].map(str::to_owned);
        Description { name, version, summary, config_schema }
    }
}

/// What the manifest of the crate says of the plugin.
#[macro_export]
macro_rules! about {
    () => {
        $crate::About {
            name: ::core::env!("CARGO_PKG_NAME"),
            version: ::core::env!("CARGO_PKG_VERSION"),
            summary: ::core::env!("CARGO_PKG_DESCRIPTION"),
            config_schema: "",
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_plugin_is_what_its_manifest_says_and_takes_the_config_that_its_schema_says() {
        let about = crate::about!().config_schema("{}").describe();
        assert_eq!(about.name, "waystation-plugin");
        assert_eq!(about.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(about.summary, "Write Waystation plugins in Rust.");
        assert_eq!(about.config_schema, "{}");
    }
}
