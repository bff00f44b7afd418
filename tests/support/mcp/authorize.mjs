// Preloaded into Node: sends the token in VOX_TEST_BEARER with every request, since the suite has no option for it.
import http from "node:http";

const { Agent, setGlobalDispatcher } = await import(process.env.VOX_TEST_UNDICI);

const token = ["authorization", `Bearer ${process.env.VOX_TEST_BEARER}`];

function authorized(headers) {
  if (Array.isArray(headers)) return [...headers, ...token];
  if (headers && typeof headers[Symbol.iterator] === "function") return [...headers].flat().concat(token);
  return { ...headers, [token[0]]: token[1] };
}

setGlobalDispatcher(
  new Agent().compose((dispatch) => (options, handler) =>
    dispatch({ ...options, headers: authorized(options.headers) }, handler),
  ),
);

const request = http.request;
http.request = (...given) => {
  const at = given.findIndex((each) => each?.constructor === Object);
  if (at >= 0) given[at] = { ...given[at], headers: authorized(given[at].headers) };
  return request(...given);
};
