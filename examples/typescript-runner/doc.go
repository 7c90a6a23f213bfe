// Package typescript holds a runner in TypeScript, and the test that runs it.
// src/quartet.ts is the loop that takes turns; it uses the REST API with types that are
// generated from the API's description. src/main.ts is a short program that uses the loop.
package typescript
