// Package typescript holds a runner in TypeScript, and the test that runs it:
// src/quartet.ts is the loop, over the REST API as its generated description
// types it; src/main.ts is a page that uses it.
package typescript
