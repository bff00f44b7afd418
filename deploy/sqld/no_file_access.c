/* An extension of the libSQL server that takes away its SQL functions for files.
 *
 * The server registers these in every connection, whatever the token may do:
 *   readfile, writefile, lsmode, fsdir   read, write and list any file of the server's user
 *   sha3_query                           runs statements that the server itself rejects, such as ATTACH
 *   sqlite3mc_config, ..._codec_data     change and show the encryption of the connection
 *   fts3_tokenizer                       shows addresses in the server's memory
 *   sqlite_dbpage                        reads and writes raw pages of the database
 * An extension is loaded into every connection after them. It replaces the functions by one that fails, and drops the
 * tables. Build it with build_extension.sh.
 *
 * It needs a C compiler and no header: the entries of the table of routines that SQLite passes to an extension are part
 * of its stable interface and never move. */

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_context sqlite3_context;
typedef struct sqlite3_value sqlite3_value;
typedef void scalar_function(sqlite3_context *, int, sqlite3_value **);

struct sqlite3_api_routines {
    void *before_result_error[80];
    void (*result_error)(sqlite3_context *, const char *message, int length);
    void *before_create_module[38];
    int (*create_module_v2)(sqlite3 *, const char *name, const void *module, void *data, void (*destroy)(void *));
    void *before_create_function[42];
    int (*create_function_v2)(sqlite3 *, const char *name, int arguments, int flags, void *data, scalar_function *call,
                              scalar_function *step, void (*final)(sqlite3_context *), void (*destroy)(void *));
};

enum { SQLITE_OK = 0, SQLITE_UTF8 = 1, SQLITE_DIRECTONLY = 0x80000, MAX_ARGUMENTS = 8 };

static const char *const FUNCTIONS[] = {
    "readfile",         "writefile",      "lsmode", "sha3_query", "sqlite3mc_config", "sqlite3mc_config_table",
    "sqlite3mc_codec_data", "fts3_tokenizer",
};
static const char *const TABLES[] = {"fsdir", "sqlite_dbpage"};
static const struct sqlite3_api_routines *sqlite3_api;

static void refuse(sqlite3_context *context, int count, sqlite3_value **values) {
    (void)count;
    (void)values;
    sqlite3_api->result_error(context, "function is disabled on this server", -1);
}

/* A function is known by its name and its number of arguments: replace each that could exist, and the variadic one. */
static int disable(sqlite3 *connection, const char *name) {
    for (int arguments = -1; arguments <= MAX_ARGUMENTS; arguments++) {
        int status = sqlite3_api->create_function_v2(connection, name, arguments, SQLITE_UTF8 | SQLITE_DIRECTONLY, 0,
                                                     refuse, 0, 0, 0);
        if (status != SQLITE_OK) return status;
    }
    return SQLITE_OK;
}

int sqlite3_extension_init(sqlite3 *connection, char **error, const struct sqlite3_api_routines *routines) {
    (void)error;
    sqlite3_api = routines;
    for (unsigned i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        int status = disable(connection, FUNCTIONS[i]);
        if (status != SQLITE_OK) return status;
    }
    for (unsigned i = 0; i < sizeof TABLES / sizeof *TABLES; i++) {
        int status = sqlite3_api->create_module_v2(connection, TABLES[i], 0, 0, 0);
        if (status != SQLITE_OK) return status;
    }
    return SQLITE_OK;
}
