module wit_component

go 1.25

require go.bytecodealliance.org/pkg v0.2.3

// What the bindings need of it, so that nothing is fetched.
replace go.bytecodealliance.org/pkg => ./pkg
